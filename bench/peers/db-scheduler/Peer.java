import com.fasterxml.jackson.databind.JsonNode;
import com.github.kagkarlsson.scheduler.Scheduler;
import com.github.kagkarlsson.scheduler.serializer.JacksonSerializer;
import com.github.kagkarlsson.scheduler.task.helper.Tasks;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.atomic.LongAdder;
import org.apache.hc.client5.http.classic.methods.HttpPost;
import org.apache.hc.client5.http.impl.classic.CloseableHttpClient;
import org.apache.hc.client5.http.impl.classic.HttpClients;
import org.apache.hc.client5.http.impl.io.PoolingHttpClientConnectionManager;
import org.apache.hc.core5.http.ContentType;
import org.apache.hc.core5.http.io.entity.ByteArrayEntity;
import org.apache.hc.core5.http.io.entity.EntityUtils;

/** db-scheduler as a scheduler of wakes, with the arguments URI CONFIG SINK: see peer. */
public class Peer {
  private static final int THREADS = 20; // each with a connection to Postgres; the 100 of its other advice are as many as the server has

  private final LongAdder worked = new LongAdder();
  private final String sink;
  private final CloseableHttpClient http;

  private Peer(String sink) {
    this.sink = sink;
    PoolingHttpClientConnectionManager connections = new PoolingHttpClientConnectionManager();
    connections.setMaxTotal(THREADS);
    connections.setDefaultMaxPerRoute(THREADS);
    http = HttpClients.custom().setConnectionManager(connections).disableAutomaticRetries().build();
  }

  private void wake(JsonNode body) {
    HttpPost post = new HttpPost(sink);
    post.setHeader("authorization", "Bearer bench-wake-token-0123456789");
    post.setHeader("idempotency-key", body.get("delivery_id").textValue());
    post.setHeader("ce-id", body.get("delivery_id").textValue());
    post.setHeader("ce-time", body.get("scheduled_for").textValue());
    byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
    post.setEntity(new ByteArrayEntity(bytes, ContentType.create("application/json")));
    try {
      int status = http.execute(post, response -> {
        EntityUtils.consume(response.getEntity()); // or the connection is not used again
        return response.getCode();
      });
      if (status / 100 != 2) throw new IllegalStateException("status " + status);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private static HikariDataSource database(URI uri) {
    String[] user = uri.getUserInfo().split(":", 2);
    HikariDataSource database = new HikariDataSource();
    database.setJdbcUrl("jdbc:postgresql://" + uri.getHost() + ":" + uri.getPort() + uri.getPath());
    database.setUsername(user[0]);
    database.setPassword(user[1]);
    return database;
  }

  public static void main(String[] args) {
    Peer peer = new Peer(args[2]);
    HikariDataSource database = database(URI.create(args[0]));
    var wake = Tasks.oneTime("wake", JsonNode.class).execute((instance, context) -> {
      peer.worked.increment();
      if (!peer.sink.equals("-")) peer.wake(instance.getData());
    });
    var builder = Scheduler.create(database, wake).serializer(new JacksonSerializer()).shutdownMaxWait(Duration.ofSeconds(2));
    if (args[1].equals("fast")) {
      database.setMaximumPoolSize(THREADS + 2); // one to fetch with, one for heartbeats
      builder.threads(THREADS).pollUsingLockAndFetch(4.0, 20.0).pollingInterval(Duration.ofMillis(20));
    }
    Scheduler scheduler = builder.build();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      scheduler.stop();
      System.out.println("worked " + peer.worked.sum());
      Runtime.getRuntime().halt(0); // or the status is that of SIGTERM
    }));
    scheduler.start();
    System.out.println("ready");
  }
}
