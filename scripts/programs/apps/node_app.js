// Node's own HTTP server, as it comes: /slow answers late, an answer to /pause stops halfway.
const slow = 1000 * Number(process.env.SLOW);
require("node:http").createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    if (request.url === "/slow") setTimeout(() => response.end("ok"), slow);
    else if (request.url === "/pause") {
      response.setHeader("Content-Length", 9);
      response.write("first");
      setTimeout(() => response.end("last"), slow);
    } else response.end("ok");
  });
}).listen(Number(process.argv[2]), "127.0.0.1");
