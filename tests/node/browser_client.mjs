// Opens a page with the client for browsers in Chromium, and prints what the page shows as JSON.
// The arguments are the port to serve the page at, the program of the page, the path of Chromium, and
// the part of the address behind "#".
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { chromium } from "playwright-core";

const [port, program, executablePath, values] = process.argv.slice(2);
const page = `<!doctype html><title>Page</title><link rel="icon" href="data:,">
  <output></output><script type="module" src="/p.js"></script>`;
const files = { "/": ["text/html", page], "/p.js": ["text/javascript", await readFile(program)] };
const server = createServer((request, response) => {
  const [type, body] = files[request.url] ?? [];
  response.writeHead(body ? 200 : 404, { "content-type": type ?? "text/plain" }).end(body);
});
await new Promise((resolve) => server.listen(Number(port), "127.0.0.1", resolve));

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const opened = await browser.newPage();
const problems = [];
opened.on("pageerror", (error) => problems.push(String(error)));
opened.on("console", (message) => message.type() === "error" && problems.push(message.text()));
await opened.goto(`http://127.0.0.1:${port}/#${values}`);
const state = await opened
  .waitForSelector('output[data-state="done"]', { timeout: 30_000 })
  .catch((error) => problems.push(String(error)));
const text = await opened.textContent("output");
await browser.close();
server.close();
console.log(JSON.stringify({ text, problems, done: typeof state === "object" }));
