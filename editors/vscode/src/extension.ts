// The extension: starts `noetl lsp` for playbooks and restarts it when its settings change.
import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { DOCUMENTS, initializationOptions, serverCommand, startProblem, type Settings } from "./server";

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  context.subscriptions.push(
    vscode.commands.registerCommand("noetl.restart", restart),
    vscode.commands.registerCommand("noetl.migrate", () =>
      vscode.commands.executeCommand("editor.action.sourceAction", { kind: "source.migrate.noetl", apply: "first" }),
    ),
    vscode.workspace.onDidChangeConfiguration((change) => change.affectsConfiguration("noetl") && void restart()),
  );
  await start();
}

export async function deactivate(): Promise<void> {
  await client?.stop();
  client = undefined;
}

async function restart(): Promise<void> {
  await deactivate();
  await start();
}

async function start(): Promise<void> {
  const settings = readSettings();
  const folders = (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath);
  const command = serverCommand(settings, folders);
  client = new LanguageClient("noetl", "NoETL", command, {
    documentSelector: DOCUMENTS,
    initializationOptions: initializationOptions(settings),
  });
  try {
    await client.start();
  } catch (problem) {
    const reason = problem instanceof Error ? problem.message : String(problem);
    void vscode.window.showErrorMessage(startProblem(command, reason));
  }
}

function readSettings(): Settings {
  const found = vscode.workspace.getConfiguration("noetl");
  return {
    command: found.get<string[]>("command", []),
    strict: found.get<boolean>("strict", false),
    legacy: found.get<boolean>("legacy", false),
  };
}
