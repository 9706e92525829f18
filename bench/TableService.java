import io.undertow.Undertow;
import io.undertow.server.HttpServerExchange;
import io.undertow.util.Headers;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/** A topic as a table of Kafka Streams in RocksDB, read by key over HTTP: the narrowest service of this kind. */
public final class TableService {
    private static final String STORE = "table";
    private static final String KEYS = "/keys/";
    /** How many threads read, so that a read of the disk holds up no others; none for the one that answers. */
    private static final int READERS = Integer.getInteger("readers", 0);

    private final KafkaStreams streams;
    private final String authorization;
    private final StringSerializer keySerializer = new StringSerializer();
    private final Map<Integer, ReadOnlyKeyValueStore<String, byte[]>> partitions = new ConcurrentHashMap<>();
    private final Restoration restoration = new Restoration();

    private TableService(Properties properties, String topic, String authorization) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.table(
                topic,
                Consumed.with(Serdes.String(), Serdes.ByteArray()),
                Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as(STORE).withCachingDisabled());
        this.streams = new KafkaStreams(builder.build(properties), properties);
        this.authorization = authorization;
        streams.setGlobalStateRestoreListener(restoration);
    }

    /** Arguments: port, topic, the header that readers send, then Kafka Streams' properties, each NAME=VALUE. */
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        for (int at = 3; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        TableService service = new TableService(properties, arguments[1], arguments[2]);
        Undertow server = Undertow.builder()
                .setIoThreads(1)
                .setWorkerThreads(Math.max(1, READERS))
                .addHttpListener(Integer.parseInt(arguments[0]), "127.0.0.1")
                .setHandler(service::answer)
                .build();
        server.start();
        Runtime.getRuntime().addShutdownHook(new Thread(service.streams::close));
        service.streams.start();
    }

    private void answer(HttpServerExchange exchange) {
        if (READERS > 0 && exchange.isInIoThread()) {
            exchange.dispatch(this::answer);
            return;
        }
        String path = exchange.getRequestPath();
        if (!authorization.equals(exchange.getRequestHeaders().getFirst(Headers.AUTHORIZATION))) {
            exchange.setStatusCode(401);
        } else if (path.startsWith(KEYS)) {
            answerKey(exchange, path.substring(KEYS.length()));
        } else if (path.equals("/restoration")) {
            exchange.getResponseSender().send(restoration.json());
        } else {
            exchange.setStatusCode(404);
        }
    }

    private void answerKey(HttpServerExchange exchange, String key) {
        byte[] value;
        try {
            value = partitionOf(key).get(key);
        } catch (RuntimeException notReady) {
            partitions.clear();
            exchange.setStatusCode(503);
            return;
        }
        if (value == null) {
            exchange.setStatusCode(404);
            return;
        }
        byte[] head = ("{\"store\":\"table\",\"key\":\"" + key + "\",\"value\":").getBytes(StandardCharsets.UTF_8);
        ByteBuffer body = ByteBuffer.allocate(head.length + value.length + 1);
        body.put(head).put(value).put((byte) '}').flip();
        exchange.getResponseHeaders().put(Headers.CONTENT_TYPE, "application/json");
        exchange.getResponseSender().send(body);
    }

    private ReadOnlyKeyValueStore<String, byte[]> partitionOf(String key) {
        int partition = streams.queryMetadataForKey(STORE, key, keySerializer).partition();
        return partitions.computeIfAbsent(partition, this::open);
    }

    private ReadOnlyKeyValueStore<String, byte[]> open(int partition) {
        return streams.store(
                StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.<String, byte[]>keyValueStore())
                        .withPartition(partition));
    }

    /** How many partitions were restored, how many records, and the time from the first start to the last end. */
    private static final class Restoration implements StateRestoreListener {
        private int partitions;
        private long records;
        private long begunNs;
        private long endedNs;

        @Override
        public synchronized void onRestoreStart(TopicPartition partition, String store, long from, long to) {
            if (begunNs == 0) {
                begunNs = System.nanoTime();
            }
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) {}

        @Override
        public synchronized void onRestoreEnd(TopicPartition partition, String store, long total) {
            partitions++;
            records += total;
            endedNs = System.nanoTime();
        }

        synchronized String json() {
            double seconds = (endedNs - begunNs) / 1e9;
            return "{\"partitions\":" + partitions + ",\"records\":" + records + ",\"seconds\":" + seconds + "}";
        }
    }
}
