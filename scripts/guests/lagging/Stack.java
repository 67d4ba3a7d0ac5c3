// `java Stack.java PORT DOWNLOADS BYTES SECONDS PIECE`: Java's own HTTP/2, whose user reads
// late and in small pieces.

import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;

public class Stack {
    static final AtomicInteger lost = new AtomicInteger();

    static class Anybody implements X509TrustManager {
        public void checkClientTrusted(X509Certificate[] chain, String kind) {}

        public void checkServerTrusted(X509Certificate[] chain, String kind) {}

        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }

    static void ask(HttpClient client, String where, long rest, int piece, int wanted) {
        try {
            HttpRequest request = HttpRequest.newBuilder(URI.create(where)).build();
            HttpResponse<InputStream> response =
                client.send(request, BodyHandlers.ofInputStream());
            if (response.version() != HttpClient.Version.HTTP_2) {
                throw new IllegalStateException("no HTTP/2");
            }
            Thread.sleep(rest);
            byte[] buffer = new byte[piece];
            int came = 0;
            int count;
            while ((count = response.body().read(buffer)) >= 0) {
                came += count;
            }
            if (came != wanted) {
                throw new IllegalStateException(came + " bytes came");
            }
        } catch (Exception error) {
            System.err.println(where + " " + error);
            lost.incrementAndGet();
        }
    }

    public static void main(String[] words) throws Exception {
        System.setProperty("jdk.internal.httpclient.disableHostnameVerification", "true");
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {new Anybody()}, null);
        HttpClient client =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).sslContext(context).build();
        String base = "https://127.0.0.1:" + words[0];
        int downloads = Integer.parseInt(words[1]);
        int size = Integer.parseInt(words[2]);
        int late = Integer.parseInt(words[3]);
        int piece = Integer.parseInt(words[4]);
        ask(client, base + "/", 0, piece, 5); // until then it would make a connection for each
        List<Thread> all = new ArrayList<>();
        for (int each = 0; each < downloads; each++) {
            all.add(new Thread(() -> ask(client, base + "/some?" + size, 1000L * late, piece, size)));
        }
        all.add(new Thread(() -> ask(client, base + "/slow?" + (late + 1), 0, piece, 5)));
        for (Thread each : all) {
            each.start();
        }
        for (Thread each : all) {
            each.join();
        }
        System.out.println("{\"asked\": " + (downloads + 2) + ", \"lost\": " + lost + "}");
        System.exit(0);
    }
}
