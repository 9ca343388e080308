// key: crypto.randomUUID(), made once for the operation and saved with the body before the first call.
export async function send(url, { key, body, headers = {}, deadline = 60 }) {
  const until = performance.now() + deadline * 1000;
  let lost = false; // an attempt may have been carried out, and its answer is not known
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
      const page = /html/i.test(answer.headers.get("Content-Type") ?? "");
      if (!isOpen(answer.status, text, replayed, lost, page)) return { status: answer.status, body: text, replayed };
      lost ||= ![425, 429].includes(answer.status);
      const asked = Number(answer.headers.get("Retry-After"));
      if (asked > 0) wait = asked * 1000;
    } catch (error) {
      // No answer, or not all of it: it may have been carried out, and the same key finds out.
      if (!(error instanceof TypeError) && !["TimeoutError", "AbortError"].includes(error.name)) throw error;
      lost = true;
    }
    if (performance.now() + wait >= until)
      throw new Error("No final answer yet. Keep the key, and send the same again later.");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

function isOpen(status, text, replayed, lost, page) {
  if ([@STATUSES@].includes(status)) return true;
  if (replayed) return false;
  if (status >= 500 || (status === 409 && /"code"\s*:\s*"(@CODES@)"/.test(text))) return true;
  // After a lost attempt, what a gateway may say by itself is not the operation's answer.
  return lost && (page || status < 200 || (status >= 300 && status < 400) || [@DOUBTFUL@].includes(status));
}
