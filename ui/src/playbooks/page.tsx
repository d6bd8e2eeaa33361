/** One playbook: editor, graph, versions and executions. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, Problem, type Diagnostic } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, Dialog, ErrorState, Loading, notify, notifyProblem, Tabs } from "../common/components";
import { pageUrl, go, Link, useLocation, useQueryValue } from "../common/router";
import { useHasRole } from "../common/session";
import { counted, ProblemList } from "./problem_list";
import { loadDraft, deleteDraft, saveDraft } from "./drafts";
import { DiagnosticDialog } from "./diagnostic_dialog";
import { pagePath, catalogPath, type Checked, type Stored } from "./playbook";
import { Preview, type Net } from "./preview";
import { RunDialog } from "./run";
import { Runs } from "./runs";
import { STARTER } from "./starter";
import { Versions } from "./versions";
import { EditorView } from "./editor_view";
import { LineageGraph } from "../lineage";

type Tab = "text" | "versions" | "runs" | "lineage";

export function NewPlaybook() {
  return (
    <>
      <div class="page-head">
        <h1 class="grow">
          <Link to="/playbooks">Playbooks</Link> <span class="quiet">/</span> new
        </h1>
      </div>
      <Text path={null} saved="" begun={STARTER} />
    </>
  );
}

export function RegisteredPlaybook({ path }: { path: string }) {
  const { query } = useLocation();
  const [tab, setTab] = useQueryValue("tab", "text");
  const version = query.get("version");
  const { value, problem, reload } = useFetch<Stored>(catalogPath(path), { version }, "once");
  if (problem && !value) {
    return <ErrorState problem={problem.status === 404 ? new Problem(404, "Playbook not found", `${problem.detail}. Register it with: noetl register FILE.`) : problem} retry={reload} />;
  }
  return (
    <>
      <div class="page-head">
        <h1 class="grow path">
          <Link to="/playbooks">Playbooks</Link> <span class="quiet">/</span> {path}
        </h1>
        {value && (
          <span class="pill number" title="Shown version">
            v{value.version}
          </span>
        )}
      </div>
      {value?.description && <p class="lead">{value.description}</p>}
      <Tabs
        label="Playbook"
        tabs={[
          ["text", "Source"],
          ["versions", "Versions"],
          ["runs", "Executions"],
          ["lineage", "Lineage"],
        ]}
        value={tab as Tab}
        onChange={setTab}
      />
      <div role="tabpanel" id={`panel-${tab}`} aria-labelledby={`tab-${tab}`} class="section">
        {!value && <Loading what="Loading playbook" />}
        {value && tab === "text" && (
          <Text path={path} base={value.version} version={version ? value.version : undefined} saved={value.content!} begun={value.content!} onSaved={reload} />
        )}
        {value && tab === "versions" && <Versions path={path} />}
        {tab === "runs" && <Runs path={path} />}
        {tab === "lineage" && <LineageGraph path={path} />}
      </div>
    </>
  );
}

interface TextProps {
  /** Null for a playbook that is not registered. */
  path: string | null;
  /** The shown version. */
  base?: number;
  /** An older version, if one is shown. */
  version?: number;
  saved: string;
  begun: string;
  onSaved?: () => void;
}

function Text({ path, base, version, saved, begun, onSaved }: TextProps) {
  const canWrite = useHasRole("author");
  const canRun = useHasRole("operator");
  const [given, setGiven] = useState(() => ({ text: version ? begun : (loadDraft(path) ?? begun) }));
  const [text, setText] = useState(given.text);
  const [checked, setChecked] = useState<Checked | null>(null);
  const [lost, setLost] = useState<Problem | null>(null);
  const [net, setNet] = useState<Net | null>(null);
  const { query } = useLocation();
  const [target, setTarget] = useState<{ line: number; column: number } | null>(() => (Number(query.get("line")) ? { line: Number(query.get("line")), column: 1 } : null));
  const [legacy, setLegacy] = useState(false);
  const [running, setRunning] = useState(false);
  const [conflict, setConflict] = useState<Stored | null>(null);
  const [explaining, setExplaining] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const readOnly = !canWrite && !canRun;
  const changed = text !== saved;
  const found: Diagnostic[] = checked?.diagnostics ?? [];
  const round = useRef(0);

  useEffect(() => {
    if (version) return;
    if (changed && text !== begun) saveDraft(path, text);
    else deleteDraft(path);
  }, [text, changed]);

  // Validates with a debounce; an older response never replaces a newer one.
  useEffect(() => {
    const mine = ++round.current;
    let timer = 0;
    const check = async () => {
        try {
          const answer = await api.post<Checked>("/api/validate", { content: text, legacy });
          if (mine !== round.current) return;
          setChecked(answer);
          setLost(null);
          if (!answer.valid) return;
          const drawn = await api.post<Net>("/api/graph", { content: text, legacy });
          if (mine === round.current) setNet(drawn);
        } catch (error) {
          if (mine !== round.current) return;
          if (!(error instanceof Problem && error.unreachable)) return notifyProblem(error);
          setLost(error);
          timer = window.setTimeout(check, RETRY);
        }
    };
    timer = window.setTimeout(check, checked ? 250 : 0);
    return () => {
      round.current++;
      clearTimeout(timer);
    };
  }, [text, legacy]);

  const replace = (made: string) => {
    setText(made);
    setGiven({ text: made });
  };
  const goTo = (line: number, column: number) => setTarget({ line, column });
  const act = async (action: () => Promise<void>) => {
    if (busy) return;
    setBusy(true);
    try {
      await action();
    } catch (error) {
      if (error instanceof Problem && error.diagnostics.length) {
        setChecked({ valid: false, diagnostics: error.diagnostics, docs: checked?.docs ?? "" });
        const first = error.diagnostics.find((each) => each.severity === "error") ?? error.diagnostics[0];
        goTo(first.line, first.column);
        notify(`Failed: ${counted(error.diagnostics)}. The first is in line ${first.line}.`, { bad: true });
      } else notifyProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const save = (force = false) =>
    act(async () => {
      if (!canWrite) return notify("Saving a playbook requires the role author.", { bad: true });
      if (path && !version && !force) {
        const newest = await api.get<Stored>(catalogPath(path));
        if (newest.version !== base && newest.content !== text) return setConflict(newest);
      }
      setConflict(null);
      const stored = await api.post<Stored>("/api/catalog/register", { content: text, legacy });
      deleteDraft(path);
      notify(`Saved ${stored.path}, version ${stored.version}`);
      if (stored.path === path && !version) onSaved?.();
      else go(pagePath(stored.path));
    });
  const format = () =>
    act(async () => {
      const made = await api.post<{ content: string; changed: boolean }>("/api/format", { content: text });
      replace(made.content);
      notify(made.changed ? "Formatted" : "Already formatted");
    });
  const migrate = () =>
    act(async () => {
      const made = await api.post<{ content: string; changed: boolean; notes: { line: number; message: string }[] }>("/api/migrate", { content: text });
      replace(made.content);
      const left = made.notes.length ? ` ${made.notes.length} places need review: line ${made.notes[0].line}: ${made.notes[0].message}` : "";
      notify(made.changed ? `Migrated to the current syntax.${left}` : "Already in the current syntax");
    });
  const older = useMemo(() => found.some((each) => OLDER.test(each.code) || /noetl migrate/.test(each.hint ?? "")), [found]);

  return (
    <div class="workbench">
      <div class="row tools">
        {canWrite && (
          <Button kind="primary" onClick={() => save()} disabled={busy || !changed || !checked?.valid || !!lost} title="Save as a new version (Ctrl+S)">
            {version ? "Save as latest" : path ? "Save" : "Save playbook"}
          </Button>
        )}
        {canRun && (
          <Button onClick={() => setRunning(true)} disabled={checked?.valid === false || !!lost} title="Run this playbook (Ctrl+Enter)">
            Run…
          </Button>
        )}
        {!readOnly && (
          <>
            <Button onClick={format} disabled={busy}>
              Format
            </Button>
            <Button onClick={migrate} disabled={busy} title="Rewrite older syntax in the current one" class={older ? "hinted" : ""}>
              Migrate
            </Button>
          </>
        )}
        {(legacy || found.some((each) => each.code.startsWith("legacy-"))) && (
          <label class="check" title="Accept the syntax of 2025-11, like --legacy">
            <input type="checkbox" checked={legacy} onChange={(event) => setLegacy(event.currentTarget.checked)} /> legacy syntax
          </label>
        )}
        {changed && path && !version && (
          <Button onClick={() => replace(saved)} title="Discard changes">
            Revert
          </Button>
        )}
        <span class="grow" />
        <span class="quiet" role="status">
          {version ? `version ${version} · ` : ""}
          {changed && path ? "changed · " : ""}
          {lost ? "not checked: the server is unreachable" : checked ? counted(found) : ""}
        </span>
      </div>
      <div class="halves">
        <section class="card text" aria-label="Source">
          <EditorView
            given={given}
            readOnly={readOnly}
            label={path ? `Source of ${path}` : "Source of the new playbook"}
            found={found}
            docs={checked?.docs ?? ""}
            target={target}
            onExplain={setExplaining}
            onChange={setText}
            onSave={() => save()}
            onRun={() => canRun && setRunning(true)}
          />
        </section>
        <div class="right-column">
          <section class="card drawing" aria-label="Graph">
            <Preview net={net} stale={checked?.valid === false} onGo={(line) => goTo(line, 1)} />
          </section>
          <section class="card problems" aria-label="Problems">
            {lost ? (
              <p class="pad quiet">The text is checked again when the server responds. Unsaved changes are kept in this browser.</p>
            ) : checked ? <ProblemList found={found} docs={checked.docs} onGo={goTo} onExplain={setExplaining} /> : <Loading what="Checking" />}
          </section>
        </div>
      </div>
      {explaining && <DiagnosticDialog code={explaining} docs={checked?.docs ?? ""} onClose={() => setExplaining(null)} />}
      {conflict && (
        <Dialog
          title={`Version ${conflict.version} was saved in the meantime`}
          onClose={() => setConflict(null)}
          actions={
            <Button kind="primary" onClick={() => save(true)}>
              Save mine as latest
            </Button>
          }
        >
          <p>
            Your changes are based on version {base}. If you save them as the latest version, the changes made since then are not included. All versions are kept.
          </p>
          <p>
            <a href={pageUrl(`${pagePath(path!)}?tab=versions&from=${base}&to=${conflict.version}`)} target="_blank" rel="noreferrer">
              Show the changes
            </a>
          </p>
        </Dialog>
      )}
      {running && (
        <RunDialog
          title={path ?? "playbook"}
          legacy={legacy}
          {...(changed || !path ? { content: text } : { path, version })}
          onClose={() => setRunning(false)}
        />
      )}
    </div>
  );
}

const RETRY = 2000; // ms between checks while the server is unreachable

// Diagnostics that `migrate` fixes.
const OLDER = /^(v10|legacy)-/;
