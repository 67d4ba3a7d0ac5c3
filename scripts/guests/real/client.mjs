// `node client.mjs agent|fetch PORT REST,REST,...`: as clients.py says.
import http from "node:http";

const [kind, port, words] = process.argv.slice(2);
const rests = [0, ...words.split(",").map(Number)];
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function byAgent() {
  return new Promise((resolve, reject) => {
    const options = { port, host: "127.0.0.1", path: "/echo", method: "POST", agent };
    const request = http.request({ ...options, headers: { "content-length": 5 } }, (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode));
      response.on("error", reject);
    });
    request.on("error", reject);
    request.end("hello");
  });
}

async function byFetch() {
  const response = await fetch(`http://127.0.0.1:${port}/echo`, { method: "POST", body: "hello" });
  await response.arrayBuffer();
  return response.status;
}

let asked = 0;
let lost = 0;
for (const rest of rests) {
  await new Promise((resolve) => setTimeout(resolve, rest * 1000));
  asked += 1;
  try {
    if ((await (kind === "agent" ? byAgent() : byFetch())) !== 200) lost += 1;
  } catch {
    lost += 1;
  }
}
console.log(JSON.stringify({ asked, lost }));
process.exit(0);
