// Builds the page into ../noetl/ui: hashed files, and an index.html that names them.
// The same sources and lock file give the same bytes; `node build.mjs --check` compares instead of writing.
import * as esbuild from "esbuild";
import { mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const target = path.resolve(here, "../noetl/ui");

const options = {
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  minify: true,
  legalComments: "none",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  alias: { react: "preact/compat", "react-dom": "preact/compat", "react/jsx-runtime": "preact/jsx-runtime" },
  define: { "process.env.NODE_ENV": '"production"' },
  entryNames: "assets/[name]-[hash]",
  chunkNames: "assets/chunk-[hash]",
  assetNames: "assets/[name]-[hash]",
  loader: { ".svg": "dataurl" },
  outdir: target,
  write: false,
  metafile: true,
  logLevel: "warning",
};

async function build() {
  const result = await esbuild.build(options);
  const files = new Map();
  for (const file of result.outputFiles) files.set(slashed(path.relative(target, file.path)), file.contents);
  const entry = Object.entries(result.metafile.outputs).find(([, each]) => each.entryPoint === "src/main.tsx");
  const script = slashed(path.relative(target, path.resolve(here, entry[0])));
  const style = slashed(path.relative(target, path.resolve(here, entry[1].cssBundle)));
  const page = await readFile(path.join(here, "index.html"), "utf8");
  files.set("index.html", Buffer.from(page.replace("{{script}}", script).replace("{{style}}", style)));
  return files;
}

const slashed = (name) => name.split(path.sep).join("/");

async function present() {
  const entries = await readdir(target, { recursive: true, withFileTypes: true }).catch(() => []);
  return entries.filter((each) => each.isFile()).map((each) => slashed(path.relative(target, path.join(each.parentPath ?? each.path, each.name))));
}

async function write(files) {
  for (const name of await present()) if (!files.has(name)) await rm(path.join(target, name));
  for (const [name, contents] of files) {
    await mkdir(path.dirname(path.join(target, name)), { recursive: true });
    await writeFile(path.join(target, name), contents);
  }
}

async function differences(files) {
  const found = [];
  for (const name of await present()) if (!files.has(name)) found.push(`${name} is no longer built`);
  for (const [name, contents] of files) {
    const kept = await readFile(path.join(target, name)).catch(() => null);
    if (kept === null) found.push(`${name} is missing`);
    else if (!kept.equals(Buffer.from(contents))) found.push(`${name} differs`);
  }
  return found;
}

if (process.argv.includes("--check")) {
  const found = await differences(await build());
  if (found.length) {
    console.error(`noetl/ui is not up to date with ui/; run \`make ui\` and commit it:\n  ${found.join("\n  ")}`);
    process.exit(1);
  }
} else {
  const files = await build();
  await write(files);
  const total = [...files.values()].reduce((sum, each) => sum + each.length, 0);
  console.error(`noetl/ui: ${files.size} files, ${(total / 1024).toFixed(0)} KiB`);
}
