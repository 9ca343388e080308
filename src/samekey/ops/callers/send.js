// key: crypto.randomUUID(), made once for the operation and saved with the body before the first call.
export async function send(url, { key, body, headers = {}, deadline = 60 }) {
  const until = performance.now() + deadline * 1000;
  for (let attempt = 0; ; attempt++) {
    let wait = Math.random() * Math.min(20000, 500 * 2 ** attempt);
    try {
      const answer = await fetch(url, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...headers, "@HEADER@": `@Q@${key}@Q@` },
        body,
        redirect: "manual",
        signal: AbortSignal.timeout(Math.ceil(Math.max(1, Math.min(10000, until - performance.now())))),
      });
      const text = await answer.text();
      const replayed = answer.headers.get("@REPLAYED@") === "true";
      if (!isOpen(answer.status, text, replayed)) return { status: answer.status, body: text, replayed };
      const asked = Number(answer.headers.get("Retry-After"));
      if (asked > 0) wait = asked * 1000;
    } catch (error) {
      // No answer, or not all of it: it may have been carried out, and the same key finds out.
      if (!(error instanceof TypeError) && !["TimeoutError", "AbortError"].includes(error.name)) throw error;
    }
    if (performance.now() + wait >= until)
      throw new Error("No final answer yet. Keep the key, and send the same again later.");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function isOpen(status, text, replayed) {
  if (status === 409) return /"(@CODES@)"/.test(text);
  return [@STATUSES@].includes(status) || (status >= 500 && !replayed);
}
