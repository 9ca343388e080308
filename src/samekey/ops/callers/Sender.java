import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;

/** Sends a body under its key until there is a final answer. */
final class Sender {
    private static final Pattern OPEN_CODES = Pattern.compile("\"code\"\\s*:\\s*\"(@CODES@)\"");
    private static final List<Integer> OPEN = List.of(@STATUSES@);
    private static final List<Integer> DOUBTFUL = List.of(@DOUBTFUL@);

    /** The key (UUID.randomUUID()) was made once for the operation, and saved with the body before the first call. */
    static HttpResponse<String> send(HttpClient client, String url, String key, String body, Duration deadline)
            throws InterruptedException {
        long until = System.nanoTime() + deadline.toNanos();
        boolean lost = false; // an attempt may have been carried out, and its answer is not known
        for (int attempt = 0; ; attempt++) {
            double wait = ThreadLocalRandom.current().nextDouble() * Math.min(20, 0.5 * Math.pow(2, attempt));
            HttpRequest request = HttpRequest.newBuilder(URI.create(url))
                    .timeout(Duration.ofSeconds(10))
                    .header("Content-Type", "application/json")
                    .header("@HEADER@", "@EQ@" + key + "@EQ@")
                    .POST(HttpRequest.BodyPublishers.ofString(body))
                    .build();
            try {
                HttpResponse<String> answer = whole(client, request, Math.min(10_000, (until - System.nanoTime()) / 1_000_000));
                if (!isOpen(answer, lost)) return answer;
                lost = lost || (answer.statusCode() != 425 && answer.statusCode() != 429);
                String asked = answer.headers().firstValue("Retry-After").orElse("");
                if (asked.matches("[1-9][0-9]{0,5}")) wait = Integer.parseInt(asked);
            } catch (ExecutionException | TimeoutException none) {
                lost = true; // No answer, or not all of it: it may have been carried out, and the same key finds out.
            }
            if (System.nanoTime() + (long) (wait * 1e9) >= until)
                throw new IllegalStateException("No final answer yet. Keep the key, and send the same again later.");
            Thread.sleep((long) (wait * 1000));
        }
    }

    /** The answer to its last byte: a time-out of the request ends with its head. */
    private static HttpResponse<String> whole(HttpClient client, HttpRequest request, long milliseconds)
            throws InterruptedException, ExecutionException, TimeoutException {
        var coming = client.sendAsync(request, HttpResponse.BodyHandlers.ofString());
        try {
            return coming.get(Math.max(1, milliseconds), TimeUnit.MILLISECONDS);
        } finally {
            coming.cancel(true);
        }
    }

    private static boolean isOpen(HttpResponse<String> answer, boolean lost) {
        int status = answer.statusCode();
        if (OPEN.contains(status)) return true;
        if (answer.headers().firstValue("@REPLAYED@").orElse("").equals("true")) return false;
        if (status >= 500 || (status == 409 && OPEN_CODES.matcher(answer.body()).find())) return true;
        // After a lost attempt, what a gateway may say by itself is not the operation's answer.
        boolean page = answer.headers().firstValue("Content-Type").orElse("").toLowerCase().contains("html");
        return lost && (page || (status >= 300 && status < 400) || DOUBTFUL.contains(status));
    }
}
