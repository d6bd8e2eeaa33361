// Bundles the extension into dist/: one file that requires only `vscode` and Node, and one with what tests use.
import { build } from "esbuild";

const common = { bundle: true, platform: "node", target: "node20", minify: true, logLevel: "warning" };
await build({
  ...common,
  entryPoints: ["src/extension.ts"],
  outfile: "dist/extension.cjs",
  format: "cjs",
  external: ["vscode"],
});
await build({ ...common, entryPoints: ["src/server.ts"], outfile: "dist/server.mjs", format: "esm" });
