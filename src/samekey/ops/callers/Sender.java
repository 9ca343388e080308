import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Pattern;

/** Sends a body under its key until there is a final answer. */
final class Sender {
    private static final Pattern OPEN_CODES = Pattern.compile("\"(@CODES@)\"");
    private static final List<Integer> OPEN = List.of(@STATUSES@);

    /** The key (UUID.randomUUID()) was made once for the operation, and saved with the body before the first call. */
    static HttpResponse<String> send(HttpClient client, String url, String key, String body, Duration deadline)
            throws InterruptedException {
        long until = System.nanoTime() + deadline.toNanos();
        for (int attempt = 0; ; attempt++) {
            double wait = ThreadLocalRandom.current().nextDouble() * Math.min(20, 0.5 * Math.pow(2, attempt));
            HttpRequest request = HttpRequest.newBuilder(URI.create(url))
                    .timeout(Duration.ofSeconds(10))
                    .header("Content-Type", "application/json")
                    .header("@HEADER@", "@EQ@" + key + "@EQ@")
                    .POST(HttpRequest.BodyPublishers.ofString(body))
                    .build();
            try {
                HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
                if (!isOpen(answer)) return answer;
                String asked = answer.headers().firstValue("Retry-After").orElse("");
                if (asked.matches("[1-9][0-9]{0,5}")) wait = Integer.parseInt(asked);
            } catch (IOException lost) {
                // No answer, or not all of it: it may have been carried out, and the same key finds out.
            }
            if (System.nanoTime() + (long) (wait * 1e9) >= until)
                throw new IllegalStateException("No final answer yet. Keep the key, and send the same again later.");
            Thread.sleep((long) (wait * 1000));
        }
    }

    private static boolean isOpen(HttpResponse<String> answer) {
        int status = answer.statusCode();
        if (status == 409) return OPEN_CODES.matcher(answer.body()).find();
        boolean replayed = answer.headers().firstValue("@REPLAYED@").orElse("").equals("true");
        return OPEN.contains(status) || (status >= 500 && !replayed);
    }
}
