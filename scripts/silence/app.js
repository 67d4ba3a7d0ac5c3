// What conform asks for, by Node's http: `node app.js PORT`.
const http = require("http");
const after = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function read(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return Buffer.concat(pieces);
}

const often = { connectionsCheckingInterval: 500 };
const server = http.createServer(often, async (request, response) => {
  try {
    const [path, query] = request.url.split("?");
    const number = Number(query || 0);
    if (path === "/slow" || path === "/late") await after(number);
    const body = path === "/early" ? Buffer.alloc(0) : await read(request);
    let pieces = [Buffer.from("hello")];
    let rest = 0;
    if (path === "/echo" || path === "/late") pieces = [body];
    if (path === "/some") pieces = [Buffer.alloc(number)];
    if (path === "/drops") { pieces = Array(number).fill("0123456789"); rest = 0.004; }
    if (path === "/pause") { pieces = ["first", "after"]; rest = number; }
    if (path === "/events") { pieces = Array(number).fill("data: tick\n\n"); rest = 0.4; }
    if (path === "/events") response.setHeader("Content-Type", "text/event-stream");
    else response.setHeader("Content-Length", pieces.reduce((n, p) => n + p.length, 0));
    for (const [place, piece] of pieces.entries()) {
      if (place) await after(rest);
      response.write(piece);
    }
    response.end();
  } catch { /* its client has gone */ }
});
server.keepAliveTimeout = 3000;
server.headersTimeout = 3000;
server.listen(Number(process.argv[2]), "127.0.0.1");
process.on("SIGTERM", () => server.close(() => process.exit(0)));
