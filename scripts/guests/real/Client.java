// `java Client.java PORT REST,REST,...`: as clients.py says, with Java's own HttpClient.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;

public class Client {
    public static void main(String[] words) throws Exception {
        HttpClient client =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        URI where = URI.create("http://127.0.0.1:" + words[0] + "/echo");
        int asked = 0;
        int lost = 0;
        for (String rest : ("0," + words[1]).split(",")) {
            Thread.sleep((long) (1000 * Double.parseDouble(rest)));
            asked++;
            HttpRequest request = HttpRequest.newBuilder(where)
                .timeout(Duration.ofSeconds(20))
                .POST(BodyPublishers.ofString("hello"))
                .build();
            try {
                if (client.send(request, BodyHandlers.ofString()).statusCode() != 200) {
                    lost++;
                }
            } catch (java.io.IOException error) {
                lost++;
            }
        }
        System.out.println("{\"asked\": " + asked + ", \"lost\": " + lost + "}");
        System.exit(0);
    }
}
