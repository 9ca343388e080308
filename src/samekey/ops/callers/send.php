<?php
// $key: a random UUID, made once for the operation and saved with the body before the first call.
function send(string $url, string $key, string $body, float $deadline = 60.0): array
{
    $until = hrtime(true) / 1e9 + $deadline;
    $lost = false;  // an attempt may have been carried out, and its answer is not known
    for ($attempt = 0; ; $attempt++) {
        $wait = mt_rand() / mt_getrandmax() * min(20.0, 0.5 * 2 ** $attempt);
        $headers = [];
        $handle = curl_init($url);
        curl_setopt_array($handle, [
            CURLOPT_POST => true,
            CURLOPT_POSTFIELDS => $body,
            CURLOPT_HTTPHEADER => ['Content-Type: application/json', '@HEADER@: @Q@' . $key . '@Q@'],
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_TIMEOUT_MS => (int) max(1, min(10000, ($until - hrtime(true) / 1e9) * 1000)),
            CURLOPT_HEADERFUNCTION => function ($handle, string $line) use (&$headers): int {
                $parts = explode(':', $line, 2);
                if (count($parts) === 2) {
                    $headers[strtolower($parts[0])] = trim($parts[1]);
                }
                return strlen($line);
            },
        ]);
        $answer = curl_exec($handle);  // false: no answer, or not all of it; the same key finds out
        $status = curl_getinfo($handle, CURLINFO_RESPONSE_CODE);
        if ($answer !== false && !is_open($status, $answer, $headers, $lost)) {
            return [$status, $answer];
        }
        $lost = $lost || $answer === false || !in_array($status, [425, 429], true);
        if ((int) ($headers['retry-after'] ?? 0) > 0) {
            $wait = (int) $headers['retry-after'];
        }
        if (hrtime(true) / 1e9 + $wait >= $until) {
            throw new RuntimeException('No final answer yet. Keep the key, and send the same again later.');
        }
        usleep((int) ($wait * 1e6));
    }
}

function is_open(int $status, string $answer, array $headers, bool $lost): bool
{
    if (in_array($status, [@STATUSES@], true)) {
        return true;
    }
    if (($headers[strtolower('@REPLAYED@')] ?? '') === 'true') {
        return false;
    }
    if ($status >= 500 || ($status === 409 && preg_match('/"code"\s*:\s*"(@CODES@)"/', $answer) === 1)) {
        return true;
    }
    // After a lost attempt, what a gateway may say by itself is not the operation's answer.
    $page = stripos($headers['content-type'] ?? '', 'html') !== false;
    return $lost && ($page || ($status >= 300 && $status < 400) || in_array($status, [@DOUBTFUL@], true));
}
