// Stateful operators of a job in Scala, typed by case classes. Their states are those of pandas_state and ledger, which
// write_checkpoints.py has in Python; scala_operators.py compiles them.
import java.sql.Timestamp
import java.time.Duration
import org.apache.spark.sql.{DataFrame, Dataset, Encoders}
import org.apache.spark.sql.streaming._

case class Event(key: String, n: Option[Long], d: Option[Double], at: Timestamp)
case class Counted(count: Long, last: String)
case class CountedRow(key: String, count: Long, last: String, cleared: Boolean)
case class Total(sum: Long, last: String)
case class Seen(at: Timestamp, amounts: Seq[BigDecimal], byKey: Map[String, Option[Double]], total: Option[Total])
case class Held(
    total: Option[Total],
    recent: Seq[Tuple1[Long]],
    by_second: Seq[(Tuple1[Int], Tuple1[Long])],
    total_ttl: Option[Tuple1[Long]],
    recent_ttl: Seq[Tuple1[Long]],
    by_second_ttl: Seq[(Tuple1[Int], Tuple1[Long])],
    seen: Option[Seen])
case class HeldRow(key: String, held: Held, expires_ms: Long)

class Ledger(delayMs: Long, startS: Long) extends StatefulProcessor[String, Event, HeldRow] {
  @transient private var total: ValueState[Total] = _
  @transient private var seen: ValueState[Seen] = _
  @transient private var totalTtl: ValueState[Long] = _
  @transient private var lists: Seq[ListState[Long]] = _
  @transient private var maps: Seq[MapState[Int, Long]] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    val (int, long, ttl) = (Encoders.scalaInt, Encoders.scalaLong, TTLConfig(Duration.ofMillis(delayMs)))
    total = getHandle.getValueState("total", Encoders.product[Total], TTLConfig.NONE)
    seen = getHandle.getValueState("seen", Encoders.product[Seen], TTLConfig.NONE)
    totalTtl = getHandle.getValueState("total_ttl", long, ttl)
    lists = Seq("recent" -> TTLConfig.NONE, "recent_ttl" -> ttl).map {
      case (name, kept) => getHandle.getListState(name, long, kept)
    }
    maps = Seq("by_second" -> TTLConfig.NONE, "by_second_ttl" -> ttl).map {
      case (name, kept) => getHandle.getMapState(name, int, long, kept)
    }
  }

  override def handleInputRows(key: String, events: Iterator[Event], times: TimerValues): Iterator[HeldRow] = {
    val expiresMs = times.getCurrentProcessingTimeInMs() + delayMs
    getHandle.registerTimer(expiresMs)
    events.foreach(event => if (event.n.contains(-1L)) clear() else add(key, event))
    Iterator(HeldRow(key, held, expiresMs))
  }

  private def clear(): Unit = {
    total.clear()
    seen.clear()
    totalTtl.clear()
    lists.foreach(_.clear())
    maps.foreach(_.clear())
  }

  private def add(key: String, event: Event): Unit = {
    val number = event.n.getOrElse(-3L)
    val second = (event.at.getTime / 1000 - startS).toInt
    val before = if (total.exists()) Some(total.get()) else None
    val sum = before.fold(0L)(_.sum) + number
    total.update(Total(sum, s"at $second"))
    totalTtl.update(sum)
    seen.update(Seen(event.at, Seq(BigDecimal(number), BigDecimal("0.5")), Map(s"$key" -> event.d), before))
    lists.foreach(list => if (number == -2) list.put(Array(number, sum)) else list.appendValue(number))
    maps.foreach { map =>
      map.updateValue(second, number)
      if (second == 203) map.removeKey(5)
    }
  }

  private def held: Held = {
    val Seq(recent, recentTtl) = lists.map(_.get().map(Tuple1(_)).toSeq)
    val Seq(bySecond, bySecondTtl) =
      maps.map(_.iterator().map { case (second, number) => (Tuple1(second), Tuple1(number)) }.toSeq)
    Held(
      if (total.exists()) Some(total.get()) else None, recent, bySecond,
      if (totalTtl.exists()) Some(Tuple1(totalTtl.get())) else None, recentTtl, bySecondTtl,
      if (seen.exists()) Some(seen.get()) else None)
  }
}

object ScalaOperators {
  def groupState(frame: DataFrame): DataFrame = {
    val output = Encoders.product[CountedRow]
    keyed(frame.withWatermark("at", "10 seconds")).flatMapGroupsWithState(
      OutputMode.Update(), GroupStateTimeout.EventTimeTimeout)(counted)(Encoders.product[Counted], output).toDF()
  }

  def ledger(frame: DataFrame, delayMs: Long, startS: Long): DataFrame = {
    val processor = new Ledger(delayMs, startS)
    keyed(frame).transformWithState(
      processor, TimeMode.ProcessingTime(), OutputMode.Update())(Encoders.product[HeldRow]).toDF()
  }

  private def keyed(frame: DataFrame) =
    frame.as[Event](Encoders.product[Event]).groupByKey(_.key)(Encoders.STRING)

  private def counted(key: String, events: Iterator[Event], state: GroupState[Counted]): Iterator[CountedRow] = {
    val all = events.toSeq
    val count = state.getOption.fold(0L)(_.count) + all.size
    val now = Counted(count, s"$count of ${if (key == null) "None" else key}")
    val cleared = all.exists(_.n.exists(_ < 0))
    if (cleared) state.remove() else state.update(now)
    Iterator(CountedRow(key, now.count, now.last, cleared))
  }
}
