/** Rerun from a step, or fork from an event: with changed values, on the same or a newer version of the playbook. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, once, Problem, type Page } from "../common/api";
import { Button, Dialog, ErrorState, focusField, Loading, notify } from "../common/components";
import { go } from "../common/router";
import { catalogPath, type Stored } from "../playbooks/playbook";
import { begun, FormField, readForm, type Field, type Form, type Value } from "../playbooks/run";
import { DiffView } from "../playbooks/versions";
import type { Log } from "./log";
import type { StateDocument } from "./snapshot";

interface Props {
  id: string;
  path: string;
  version: string | null;
  steps: string[];
  from: string | null;
  log: Log;
  /** The event from which the execution is forked; null: it is rerun. */
  at: number | null;
  close: () => void;
}

export function RerunDialog({ id, path, version, steps, from, log, at, close }: Props) {
  const [step, setStep] = useState(from ?? "");
  const [ran, setRan] = useState<string | null>(null);
  const [newest, setNewest] = useState<Stored | null>(null);
  const [useNewest, setUseNewest] = useState(false);
  const [form, setForm] = useState<Form | null>(null);
  const [workload, setWorkload] = useState<Record<string, unknown> | null>(null);
  const [given, setGiven] = useState<Record<string, Value>>({});
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<Problem | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const [key] = useState(once);
  const changedText = newest && ran !== null && newest.content !== ran;

  useEffect(() => {
    api.get<{ content: string }>(`/api/executions/${id}/playbook`).then((found) => setRan(found.content), setFailed);
    api.get<StateDocument>(`/api/executions/${id}/state`).then((found) => setWorkload(found.workload), setFailed);
    if (path) readNewest(path).then(setNewest, () => {});
  }, [id]);
  const text = useNewest && newest ? newest.content! : ran;
  const start = useMemo(() => (field: Field) => startOf(field, workload ?? {}), [workload]);
  useEffect(() => {
    if (text === null || workload === null) return;
    api.post<Form>("/api/form", { content: text, legacy: true }).then((found) => {
      setForm(found);
      setGiven((known) => Object.fromEntries(found.fields.map((field) => [field.name, field.name in known ? known[field.name] : startOf(field, workload)])));
    }, setFailed);
  }, [text, workload]);
  useEffect(() => {
    if (form) focusField(document.getElementById("rerun-form"));
  }, [form === null]);

  const kept = useMemo(() => (at === null ? keptSteps(log, step) : endedSteps(log, at)), [log, step, at]);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!form || busy) return;
    setBusy(true);
    setProblem(null);
    try {
      const { payload, problems } = await readForm(form.fields, given, start);
      setWrong(problems);
      if (Object.keys(problems).length) return;
      const body = { ...(at !== null ? { at } : step ? { from: step } : {}), ...(Object.keys(payload).length ? { changes: payload } : {}), ...(useNewest && newest ? { version: newest.version } : {}) };
      const made = await api.post<{ execution_id: string }>(`/api/executions/${id}/${at === null ? "rerun" : "fork"}`, body, key);
      notify("Started as a new execution");
      close();
      go(`/executions/${made.execution_id}`);
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(-1, "Start failed", String(error)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog
      title={at === null ? "Rerun execution" : `Fork from event ${at}`}
      wide
      onClose={close}
      actions={
        <Button kind="primary" type="submit" form="rerun-form" disabled={busy || !form}>
          {busy ? "Starting …" : at !== null ? "Fork" : step ? `Rerun from ${step}` : "Rerun"}
        </Button>
      }
    >
      {failed ? <ErrorState problem={failed} /> : null}
      {!form && !failed && <Loading what="Loading form" />}
      {form && (
        <form id="rerun-form" class="run-form rerun-form" onSubmit={submit} noValidate>
          {form.fields.map((field) => (
            <FormField
              key={field.name}
              field={field}
              value={given[field.name] ?? ""}
              wrong={wrong[field.name]}
              onChange={(value) => {
                setGiven((all) => ({ ...all, [field.name]: value }));
                setWrong(({ [field.name]: _, ...rest }) => rest);
              }}
            />
          ))}
          {!form.fields.length && <p class="quiet">This playbook has no workload, so there is no value to change.</p>}
          <div class="pair">
            <div class="form-field">
              <label for="rerun-from">From</label>
              {at !== null ? (
                <input id="rerun-from" type="text" disabled value={`event ${at}: ${log.nameOf(at)}`} />
              ) : (
                <select id="rerun-from" value={step} onChange={(event) => setStep(event.currentTarget.value)}>
                  <option value="">the first step</option>
                  {steps.map((each) => (
                    <option key={each} value={each}>
                      step {each}
                    </option>
                  ))}
                </select>
              )}
              <div class="quiet">
                {at === null && !step
                  ? "All steps run again."
                  : kept.length
                    ? `Results of ${kept.slice(0, 6).join(", ")}${kept.length > 6 ? ` and ${kept.length - 6} more` : ""} are kept.${at === null ? "" : " Steps that were open at this event start again."}`
                    : "No step ran before it."}
              </div>
            </div>
            <div class="form-field">
              <label for="rerun-version">Version</label>
              <select id="rerun-version" value={useNewest ? "newest" : ""} disabled={!changedText} onChange={(event) => setUseNewest(event.currentTarget.value === "newest")}>
                <option value="">{version ? `version ${version}, as it ran` : "the text that ran"}</option>
                {newest && changedText && <option value="newest">version {newest.version}, the newest</option>}
              </select>
              <div class="quiet">{changedText ? "The playbook has changed since." : newest ? "This is the newest version." : "The playbook is not in the catalog."}</div>
            </div>
          </div>
          {useNewest && newest && ran !== null && (
            <details open>
              <summary>Changes of the playbook</summary>
              <DiffView before={ran} after={newest.content!} />
            </details>
          )}
          {problem && (
            <div class="refused" role="alert">
              <strong>{problem.title}</strong>
              <p>{problem.detail}</p>
            </div>
          )}
        </form>
      )}
    </Dialog>
  );
}

/** The newest registered version; null if the playbook is not in the catalog. */
async function readNewest(path: string): Promise<Stored | null> {
  const found = await api.get<Page<Stored>>("/api/catalog", { search: path, limit: 1000 });
  return found.items.some((each) => each.path === path) ? api.get<Stored>(catalogPath(path)) : null;
}

/** The value of a field in the execution; secrets are left unchanged. */
function startOf(field: Field, workload: Record<string, unknown>): Value {
  if (field.secret || !(field.name in workload)) return begun(field);
  const value = workload[field.name];
  if (field.type === "boolean") return value === true;
  if (value === null || value === undefined || value === "***") return "";
  return typeof value === "string" ? value : typeof value === "object" ? (same(value, field.default) && field.text ? field.text : JSON.stringify(value, null, 2)) : String(value);
}

const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

/** The steps whose results a rerun from this step reuses: those that ended before its last run. */
function keptSteps(log: Log, from: string): string[] {
  if (!from) return [];
  let last = 0;
  for (let seq = 1; seq <= log.length; seq++) if (log.nameOf(seq) === "step.scheduled" && log.stepOf(seq) === from) last = seq;
  return endedSteps(log, last - 1).filter((step) => step !== from);
}

/** The steps that have ended after an event. */
function endedSteps(log: Log, until: number): string[] {
  const found = new Set<string>();
  for (let seq = 1; seq <= until; seq++) if (log.nameOf(seq) === "step.done" || log.nameOf(seq) === "step.failed") found.add(log.stepOf(seq)!);
  return [...found];
}
