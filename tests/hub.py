"""As much of the hub as it takes to list, to stream and to fetch a folder of a dataset."""

import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "c" * 40


@contextmanager
def serving(folder, repository="allenai/c4", inside="en"):
    """The address of a server whose only dataset has the files of a local folder."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.split("?")[0]
            if path == f"/api/datasets/{repository}/tree/main/{inside}":
                self.answer([entry(file) for file in sorted(folder.iterdir())])
            elif path.startswith(f"/api/datasets/{repository}"):
                self.answer({"id": repository, "sha": COMMIT, "siblings": []})
            elif path.startswith(f"/datasets/{repository}/resolve/main/{inside}/"):
                self.send(folder / path.rsplit("/", 1)[1])
            else:
                self.answer({"error": "not found"}, status=404)

        do_HEAD = do_GET

        def answer(self, content, status=200):
            self.reply(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

        def send(self, file):
            body, status = file.read_bytes(), 200
            headers = {"ETag": f'"{entry(file)["oid"]}"', "X-Repo-Commit": COMMIT}
            if wanted := self.headers.get("Range"):
                first, last = (int(place or len(body)) for place in wanted[6:].split("-"))
                headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
                body, status = body[first : last + 1], 206
            self.reply(status, body, headers)

        def reply(self, status, body, headers):
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    def entry(file):
        oid = hashlib.sha1(file.read_bytes()).hexdigest()
        path = f"{inside}/{file.name}"
        return {"type": "file", "oid": oid, "size": file.stat().st_size, "path": path}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
