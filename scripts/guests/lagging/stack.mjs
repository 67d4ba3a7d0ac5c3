// `node stack.mjs PORT DOWNLOADS BYTES SECONDS PIECE`: Node's own HTTP/2, whose user reads late
// and in small pieces.

import { connect } from "node:http2";

const [port, downloads, size, late, piece] = process.argv.slice(2).map(Number);
const session = connect(`https://127.0.0.1:${port}`, { rejectUnauthorized: false });
let lost = 0;
session.on("error", (error) => console.error("session", error.message));

function ask(path, rest, wanted) {
  return new Promise((resolve) => {
    let came = 0;
    let why = "";
    const stream = session.request({ ":path": path });
    stream.on("error", (error) => (why = error.message));
    stream.on("response", () =>
      setTimeout(() => {
        stream.on("readable", () => {
          let read;
          while ((read = stream.read(Math.min(piece, stream.readableLength))) !== null) {
            came += read.length;
            if (read.length === 0) break;
          }
        });
      }, rest),
    );
    stream.on("close", () => {
      if (came !== wanted || why) {
        console.error(path, came, why);
        lost += 1;
      }
      resolve();
    });
  });
}

const all = [ask(`/slow?${late + 1}`, 0, 5)];
for (let each = 0; each < downloads; each++) all.push(ask(`/some?${size}`, 1000 * late, size));
await Promise.all(all);
console.log(JSON.stringify({ asked: downloads + 1, lost }));
process.exit(0);
