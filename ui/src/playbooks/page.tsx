/** One playbook: its text in the editor beside its net, its versions, its executions. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { api, Problem, type Diagnostic } from "../frame/api";
import { useFetched } from "../frame/fetched";
import { Button, Dialog, ErrorState, Loading, note, noteProblem, Tabs } from "../frame/pieces";
import { addressOf, go, Link, usePlace, useQueryValue } from "../frame/router";
import { useMay } from "../frame/session";
import { counted, Findings } from "./findings";
import { draftOf, forgetDraft, keepDraft } from "./drafts";
import { Explained } from "./explained";
import { placeOf, routeOf, type Checked, type Stored } from "./playbook";
import { Preview, type Net } from "./preview";
import { RunDialog } from "./run";
import { Runs } from "./runs";
import { STARTER } from "./starter";
import { Versions } from "./versions";
import { Writing } from "./writing";

type Tab = "text" | "versions" | "runs";

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
  const { query } = usePlace();
  const [tab, setTab] = useQueryValue("tab", "text");
  const version = query.get("version");
  const { value, problem, again } = useFetched<Stored>(routeOf(path), { version });
  if (problem) {
    return <ErrorState problem={problem.status === 404 ? new Problem(404, "There is no such playbook", `${problem.detail}. It may have been registered on another server; noetl register FILE adds it here.`) : problem} retry={again} />;
  }
  return (
    <>
      <div class="page-head">
        <h1 class="grow path">
          <Link to="/playbooks">Playbooks</Link> <span class="quiet">/</span> {path}
        </h1>
        {value && (
          <span class="pill number" title="The version that is shown">
            v{value.version}
          </span>
        )}
      </div>
      {value?.description && <p class="lead">{value.description}</p>}
      <Tabs
        label="Parts of the playbook"
        tabs={[
          ["text", "Text"],
          ["versions", "Versions"],
          ["runs", "Executions"],
        ]}
        value={tab as Tab}
        onChange={setTab}
      />
      <div role="tabpanel" id={`panel-${tab}`} aria-labelledby={`tab-${tab}`} class="room">
        {!value && <Loading what="Reading the playbook" />}
        {value && tab === "text" && (
          <Text path={path} base={value.version} version={version ? value.version : undefined} saved={value.content!} begun={value.content!} onSaved={again} />
        )}
        {value && tab === "versions" && <Versions path={path} />}
        {tab === "runs" && <Runs path={path} />}
      </div>
    </>
  );
}

interface TextProps {
  /** Null for a playbook that is in no catalog yet. */
  path: string | null;
  /** The version that is shown. */
  base?: number;
  /** An older version, when one is looked at. */
  version?: number;
  saved: string;
  begun: string;
  onSaved?: () => void;
}

function Text({ path, base, version, saved, begun, onSaved }: TextProps) {
  const mayWrite = useMay("author");
  const mayRun = useMay("operator");
  const [given, setGiven] = useState(() => ({ text: version ? begun : (draftOf(path) ?? begun) }));
  const [text, setText] = useState(given.text);
  const [checked, setChecked] = useState<Checked | null>(null);
  const [net, setNet] = useState<Net | null>(null);
  const [target, setTarget] = useState<{ line: number; column: number } | null>(null);
  const [legacy, setLegacy] = useState(false);
  const [running, setRunning] = useState(false);
  const [overtaken, setOvertaken] = useState<Stored | null>(null);
  const [explaining, setExplaining] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const readOnly = !mayWrite && !mayRun;
  const changed = text !== saved;
  const found: Diagnostic[] = checked?.diagnostics ?? [];
  const round = useRef(0);

  useEffect(() => {
    if (version) return;
    if (changed && text !== begun) keepDraft(path, text);
    else forgetDraft(path);
  }, [text, changed]);

  // The same validator as on the command line, asked when the hands rest; an older answer never replaces a newer one.
  useEffect(() => {
    const mine = ++round.current;
    const timer = setTimeout(
      async () => {
        try {
          const answer = await api.post<Checked>("/api/validate", { content: text, legacy });
          if (mine !== round.current) return;
          setChecked(answer);
          if (!answer.valid) return;
          const drawn = await api.post<Net>("/api/graph", { content: text, legacy });
          if (mine === round.current) setNet(drawn);
        } catch (error) {
          if (mine === round.current && !(error instanceof Problem && error.away)) noteProblem(error);
        }
      },
      checked ? 250 : 0,
    );
    return () => clearTimeout(timer);
  }, [text, legacy]);

  const replace = (made: string) => {
    setText(made);
    setGiven({ text: made });
  };
  const goTo = (line: number, column: number) => setTarget({ line, column });
  const act = async (deed: () => Promise<void>) => {
    if (busy) return;
    setBusy(true);
    try {
      await deed();
    } catch (error) {
      if (error instanceof Problem && error.diagnostics.length) {
        setChecked({ valid: false, diagnostics: error.diagnostics, docs: checked?.docs ?? "" });
        const first = error.diagnostics.find((each) => each.severity === "error") ?? error.diagnostics[0];
        goTo(first.line, first.column);
        note(`Not done: ${counted(error.diagnostics)}. The first is in line ${first.line}.`, { bad: true });
      } else noteProblem(error);
    } finally {
      setBusy(false);
    }
  };
  const save = (knowingly = false) =>
    act(async () => {
      if (!mayWrite) return note("Your token may look but not register; a token of the role author may.", { bad: true });
      if (path && !version && !knowingly) {
        const newest = await api.get<Stored>(routeOf(path));
        if (newest.version !== base && newest.content !== text) return setOvertaken(newest);
      }
      setOvertaken(null);
      const stored = await api.post<Stored>("/api/catalog/register", { content: text, legacy });
      forgetDraft(path);
      note(`Registered ${stored.path}, version ${stored.version}`);
      if (stored.path === path && !version) onSaved?.();
      else go(placeOf(stored.path));
    });
  const format = () =>
    act(async () => {
      const made = await api.post<{ content: string; changed: boolean }>("/api/format", { content: text });
      replace(made.content);
      note(made.changed ? "Formatted" : "The layout is canonical already");
    });
  const migrate = () =>
    act(async () => {
      const made = await api.post<{ content: string; changed: boolean; notes: { line: number; message: string }[] }>("/api/migrate", { content: text });
      replace(made.content);
      const left = made.notes.length ? ` ${made.notes.length} places need your eye: line ${made.notes[0].line}: ${made.notes[0].message}` : "";
      note(made.changed ? `Rewritten in canonical words.${left}` : "The words are canonical already");
    });
  const older = useMemo(() => found.some((each) => OLDER.test(each.code) || /noetl migrate/.test(each.hint ?? "")), [found]);

  return (
    <div class="workbench">
      <div class="row tools">
        {mayWrite && (
          <Button kind="primary" onClick={() => save()} disabled={busy || !changed || checked?.valid === false} title="Register a new version (Ctrl+S)">
            {version ? "Register as newest" : path ? "Register" : "Register playbook"}
          </Button>
        )}
        {mayRun && (
          <Button onClick={() => setRunning(true)} disabled={checked?.valid === false} title="Run this text (Ctrl+Enter)">
            Run…
          </Button>
        )}
        {!readOnly && (
          <>
            <Button onClick={format} disabled={busy}>
              Format
            </Button>
            <Button onClick={migrate} disabled={busy} title="Rewrite older words in canonical ones" class={older ? "hinted" : ""}>
              Migrate
            </Button>
          </>
        )}
        {(legacy || found.some((each) => each.code.startsWith("legacy-"))) && (
          <label class="check" title="Accept the words of 2025-11 as they are, as --legacy does">
            <input type="checkbox" checked={legacy} onChange={(event) => setLegacy(event.currentTarget.checked)} /> legacy words
          </label>
        )}
        {changed && path && !version && (
          <Button onClick={() => replace(saved)} title="Back to the registered text">
            Revert
          </Button>
        )}
        <span class="grow" />
        <span class="quiet" role="status">
          {version ? `version ${version} · ` : ""}
          {changed && path ? "changed · " : ""}
          {checked ? counted(found) : ""}
        </span>
      </div>
      <div class="halves">
        <section class="card text" aria-label="Text">
          <Writing
            given={given}
            readOnly={readOnly}
            label={path ? `Text of ${path}` : "Text of the new playbook"}
            found={found}
            docs={checked?.docs ?? ""}
            target={target}
            onExplain={setExplaining}
            onChange={setText}
            onSave={() => save()}
            onRun={() => mayRun && setRunning(true)}
          />
        </section>
        <div class="beside">
          <section class="card drawing" aria-label="Net">
            <Preview net={net} stale={checked?.valid === false} onGo={(line) => goTo(line, 1)} />
          </section>
          <section class="card problems" aria-label="Problems">
            {checked ? <Findings found={found} docs={checked.docs} onGo={goTo} onExplain={setExplaining} /> : <Loading what="Checking" />}
          </section>
        </div>
      </div>
      {explaining && <Explained code={explaining} docs={checked?.docs ?? ""} onClose={() => setExplaining(null)} />}
      {overtaken && (
        <Dialog
          title={`Version ${overtaken.version} was registered meanwhile`}
          onClose={() => setOvertaken(null)}
          actions={
            <Button kind="primary" onClick={() => save(true)}>
              Register mine as newest
            </Button>
          }
        >
          <p>
            You began with version {base}. Yours would stand before what somebody else has written since; nothing is lost either way, every version stays.
          </p>
          <p>
            <a href={addressOf(`${placeOf(path!)}?tab=versions&from=${base}&to=${overtaken.version}`)} target="_blank" rel="noreferrer">
              See what they changed
            </a>
          </p>
        </Dialog>
      )}
      {running && (
        <RunDialog
          title={path ?? "this text"}
          legacy={legacy}
          {...(changed || !path ? { content: text } : { path, version })}
          onClose={() => setRunning(false)}
        />
      )}
    </div>
  );
}

// Findings that `migrate` takes away.
const OLDER = /^(v10|legacy)-/;
