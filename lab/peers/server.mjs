// A small shop on Node, with nothing but its standard library: node server.mjs PORT
// It is meant to be right: the check must find nothing here.
import { createHash, randomUUID } from "node:crypto";
import { createServer } from "node:http";

const TOKENS = { "Bearer ann": "ann", "Bearer bob": "bob" };
const records = new Map(); // tenant and key -> {fingerprint, answer}
let count = 0;

function reply(response, status, body, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(body);
}

function problem(response, status, title) {
  const body = JSON.stringify({ type: "https://shop.example/idempotency", title });
  reply(response, status, body, { "Content-Type": "application/problem+json" });
}

// The key as a String of RFC 9651, or bare; undefined if it is neither.
function keyOf(lines) {
  if (lines.length !== 1) return undefined;
  const key = /^"(.*)"$/.exec(lines[0])?.[1] ?? lines[0];
  return /^[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]{1,255}$/.test(key) ? key : undefined;
}

function order(text) {
  try {
    const { sku, quantity } = JSON.parse(text);
    return typeof sku === "string" && Number.isInteger(quantity) ? { sku, quantity } : undefined;
  } catch {
    return undefined;
  }
}

function place(request, response, text) {
  const tenant = TOKENS[request.headers.authorization];
  if (!tenant) return reply(response, 401, '{"detail": "Who are you?"}');
  const lines = request.headersDistinct["idempotency-key"] ?? [];
  const key = keyOf(lines);
  if (key === undefined) {
    return problem(response, 400, `Idempotency-Key is ${lines.length ? "malformed" : "missing"}`);
  }
  const wanted = order(text);
  if (!wanted) return reply(response, 400, '{"detail": "A sku and a quantity, please."}');
  // The bytes, not what JSON.parse makes of them: it cannot hold big numbers.
  const fingerprint = createHash("sha256").update(`${request.method} ${request.url}\n${text}`).digest("hex");
  const name = `${tenant}\n${key}`;
  const found = records.get(name);
  if (found && found.fingerprint !== fingerprint) return problem(response, 422, "Idempotency-Key is already used");
  if (found && !found.answer) return problem(response, 409, "A request is outstanding for this Idempotency-Key");
  if (found) return reply(response, 201, found.answer, { "Idempotent-Replayed": "true" });
  records.set(name, { fingerprint });
  // As with any handler that has to wait for something: others come in between.
  setTimeout(() => {
    count += 1;
    const answer = JSON.stringify({ id: randomUUID(), ...wanted });
    records.set(name, { fingerprint, answer });
    reply(response, 201, answer);
  }, 5);
}

createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const path = request.url.split("?")[0];
    if (path === "/count") return reply(response, 200, String(count));
    if (path !== "/orders") return reply(response, 404, '{"detail": "There is no such place."}');
    if (request.method !== "POST") return reply(response, 405, '{"detail": "Only POST."}');
    place(request, response, Buffer.concat(chunks).toString("utf8"));
  });
}).listen(Number(process.argv[2]), "127.0.0.1");
