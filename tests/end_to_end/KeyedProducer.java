import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Sends the keys j0, j1, … with their numbers as values to a topic, as Kafka's own producer places them. */
class KeyedProducer {
    public static void main(String[] arguments) {
        var properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        try (var producer = new KafkaProducer<byte[], byte[]>(properties)) {
            for (int i = 0; i < Integer.parseInt(arguments[2]); i++) {
                var key = ("j" + i).getBytes(StandardCharsets.UTF_8);
                var value = String.valueOf(i).getBytes(StandardCharsets.UTF_8);
                producer.send(new ProducerRecord<>(arguments[1], key, value));
            }
        }
    }
}
