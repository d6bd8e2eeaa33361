// The extension without VS Code: how it starts the server, and a session with the real `noetl lsp`.
// NOETL is the command of the server as JSON; the default is `noetl` of PATH.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { test } from "node:test";
import protocol from "vscode-languageserver-protocol/node";
import { DOCUMENTS, initializationOptions, serverCommand, startProblem } from "../dist/server.mjs";

const settings = { command: [], strict: false, legacy: false };
const command = JSON.parse(process.env.NOETL ?? '["noetl"]');

test("the command is that of the settings, of the workspace, or of PATH", () => {
  const own = serverCommand({ ...settings, command: ["python", "-m", "noetl"] }, ["/w"]);
  assert.deepEqual(own, { command: "python", args: ["-m", "noetl", "lsp"] });
  const venv = serverCommand(settings, ["/a", "/b"], "linux", (file) => file === "/b/.venv/bin/noetl");
  assert.deepEqual(venv, { command: "/b/.venv/bin/noetl", args: ["lsp"] });
  assert.deepEqual(serverCommand(settings, ["/a"], "linux", () => false), { command: "noetl", args: ["lsp"] });
  assert.match(startProblem(venv, "not found"), /pip install noetl-engine,/);
});

test("the bundle requires only vscode and Node, and can be loaded", () => {
  const require = createRequire(import.meta.url);
  const Module = require("node:module");
  const needed = new Set();
  const stub = new Proxy(class {}, { get: (target, name) => (name === "prototype" ? target.prototype : stub) });
  const load = Module._load;
  Module._load = (name, ...rest) => {
    needed.add(name);
    return name === "vscode" ? stub : load(name, ...rest);
  };
  try {
    const extension = require("../dist/extension.cjs");
    assert.equal(typeof extension.activate, "function");
    assert.equal(typeof extension.deactivate, "function");
  } finally {
    Module._load = load;
  }
  const others = [...needed].filter((name) => name !== "vscode" && !Module.isBuiltin(name) && !name.endsWith("extension.cjs"));
  assert.deepEqual(others, []);
});

const TEXT = `apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: orders}
workflow:
  - step: start
    tool: {kind: noop}
    next: {arcs: [{step: reprot}]}
  - step: report
    tool: {kind: noop}
`;

test("a session with the server", { timeout: 100_000 }, async () => {
  const started = serverCommand({ ...settings, command }, []);
  const server = spawn(started.command, started.args, { stdio: ["pipe", "pipe", "inherit"] });
  const connection = protocol.createProtocolConnection(
    new protocol.StreamMessageReader(server.stdout),
    new protocol.StreamMessageWriter(server.stdin),
  );
  const published = [];
  let arrived = () => {};
  connection.onNotification("textDocument/publishDiagnostics", (params) => {
    published.push(params);
    arrived();
  });
  const diagnostics = async (version) => {
    for (;;) {
      const found = published.find((params) => params.version === version);
      if (found) return found.diagnostics;
      await new Promise((resolve) => (arrived = resolve));
    }
  };
  connection.listen();
  const uri = "file:///project/orders.yaml";
  const { capabilities } = await connection.sendRequest("initialize", {
    processId: process.pid,
    rootUri: null,
    capabilities: {},
    initializationOptions: initializationOptions(settings),
  });
  assert.ok(capabilities.completionProvider && capabilities.renameProvider && capabilities.codeActionProvider);
  await connection.sendNotification("initialized", {});
  const document = { uri, languageId: DOCUMENTS[0].language, version: 1, text: TEXT };
  await connection.sendNotification("textDocument/didOpen", { textDocument: document });
  const found = (await diagnostics(1)).find((each) => each.code === "unknown-step");
  assert.deepEqual(found.range, { start: { line: 6, character: 25 }, end: { line: 6, character: 31 } });

  const at = { textDocument: { uri }, position: { line: 6, character: 25 } };
  const completion = await connection.sendRequest("textDocument/completion", at);
  assert.ok(completion.items.some((item) => item.label === "report"));
  const actions = await connection.sendRequest("textDocument/codeAction", {
    textDocument: { uri },
    range: found.range,
    context: { diagnostics: [found] },
  });
  const fix = actions.find((action) => action.title.includes("report"));
  const [edit] = fix.edit.changes[uri];
  assert.equal(edit.newText, "report");
  await connection.sendNotification("textDocument/didChange", {
    textDocument: { uri, version: 2 },
    contentChanges: [{ range: edit.range, text: edit.newText }],
  });
  assert.deepEqual(await diagnostics(2), []);

  await connection.sendRequest("shutdown");
  const ended = new Promise((resolve) => server.once("exit", resolve));
  await connection.sendNotification("exit");
  assert.equal(await ended, 0);
  connection.dispose();
});
