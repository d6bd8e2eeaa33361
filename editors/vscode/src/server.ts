// How the language server is started: pure functions of settings and file system, tested without VS Code.
import { existsSync } from "node:fs";
import { join } from "node:path";

export interface Settings {
  command: string[];
  strict: boolean;
  legacy: boolean;
}

export interface ServerCommand {
  command: string;
  args: string[];
}

/** Documents that the server looks at; it ignores YAML files that are not playbooks. */
export const DOCUMENTS = [
  { language: "noetl" },
  { scheme: "file", language: "yaml" },
  { scheme: "untitled", language: "yaml" },
];

/** The command of the settings, else `noetl` of a virtual environment of the workspace, else of PATH. */
export function serverCommand(
  settings: Settings,
  folders: string[],
  platform: string = process.platform,
  exists: (file: string) => boolean = existsSync,
): ServerCommand {
  const [command, ...args] = settings.command.length > 0 ? settings.command : [found(folders, platform, exists)];
  return { command, args: [...args, "lsp"] };
}

function found(folders: string[], platform: string, exists: (file: string) => boolean): string {
  const program = platform === "win32" ? join("Scripts", "noetl.exe") : join("bin", "noetl");
  const candidates = folders.flatMap((folder) => [".venv", "venv"].map((name) => join(folder, name, program)));
  return candidates.find(exists) ?? "noetl";
}

/** The options of `initialize`. */
export function initializationOptions(settings: Settings): { strict: boolean; legacy: boolean } {
  return { strict: settings.strict, legacy: settings.legacy };
}

/** What to show if the server cannot be started. */
export function startProblem(command: ServerCommand, reason: string): string {
  return (
    `NoETL: "${[command.command, ...command.args].join(" ")}" could not be started: ${reason}. ` +
    "Install it with: pip install noetl-engine, or set noetl.command."
  );
}
