/** The run form: one field for each key of `workload`, typed by its default. */
import { useEffect, useMemo, useState } from "preact/hooks";
import { api, once, Problem } from "../common/api";
import { Button, Dialog, ErrorState, focusField, Loading } from "../common/components";
import { readLabels } from "../common/labels";
import { go } from "../common/router";
import { Prose } from "./problem_list";

type Kind = "text" | "lines" | "integer" | "number" | "boolean" | "list" | "mapping" | "template" | "any";

export interface Field {
  name: string;
  type: Kind;
  required: boolean;
  secret: boolean;
  help: string;
  default?: unknown;
  text?: string;
}

export interface Form {
  path: string;
  name: string;
  description: string;
  fields: Field[];
  keychain: { name: string; kind: string }[];
}

export type Value = string | boolean;

interface RunProps {
  title: string;
  path?: string;
  version?: number;
  content?: string;
  legacy?: boolean;
  onClose: () => void;
}

const WORDS: Record<Kind, string> = {
  text: "",
  lines: "",
  integer: "an integer",
  number: "a number",
  boolean: "",
  list: "a list, as YAML or JSON",
  mapping: "a mapping, as YAML or JSON",
  template: "computed by default",
  any: "YAML or JSON",
};

export const begun = (field: Field): Value => {
  if (field.type === "boolean") return field.default === true;
  if (field.secret || field.type === "template" || field.default === null || field.default === undefined) return "";
  return field.text ?? String(field.default);
};

export function RunDialog({ title, path, version, content, legacy = false, onClose }: RunProps) {
  const [form, setForm] = useState<Form | null>(null);
  const [failed, setFailed] = useState<unknown>(null);
  const [given, setGiven] = useState<Record<string, Value>>({});
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const [refused, setRefused] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [labels, setLabels] = useState("");
  const read = readLabels(labels);
  const key = useMemo(once, []);
  const what = { legacy, ...(content === undefined ? { path, version } : { content }) };

  useEffect(() => {
    api.post<Form>("/api/form", what).then((found) => {
      setForm(found);
      setGiven(Object.fromEntries(found.fields.map((field) => [field.name, begun(field)])));
    }, setFailed);
  }, []);

  useEffect(() => {
    if (form) focusField(document.getElementById("run-form")?.closest("dialog"));
  }, [form]);

  const change = (name: string, value: Value) => {
    setGiven((all) => ({ ...all, [name]: value }));
    setWrong(({ [name]: _, ...rest }) => rest);
  };

  const run = async (event: Event) => {
    event.preventDefault();
    if (!form || busy || typeof read === "string") return;
    setBusy(true);
    setRefused(null);
    try {
      const { payload, problems } = await readForm(form.fields, given);
      setWrong(problems);
      const first = form.fields.find((field) => problems[field.name]);
      if (first) {
        document.getElementById(`field-${first.name}`)?.focus();
        return;
      }
      const started = await api.post<{ execution_id: string }>("/api/execute", { ...what, payload, ...(Object.keys(read).length ? { labels: read } : {}) }, key);
      go(`/executions/${started.execution_id}`);
    } catch (error) {
      setRefused(error instanceof Problem ? error : new Problem(-1, "Start failed", String(error)));
    } finally {
      setBusy(false);
    }
  };

  return (
    <Dialog
      title={`Run ${title}`}
      onClose={onClose}
      actions={
        form && (
          <Button kind="primary" type="submit" form="run-form" disabled={busy}>
            {busy ? "Starting …" : "Run"}
          </Button>
        )
      }
    >
      {failed ? <ErrorState problem={failed} /> : null}
      {!form && !failed && <Loading what="Loading form" />}
      {form && (
        <form id="run-form" class="run-form" onSubmit={run} noValidate>
          {form.description && <p class="quiet">{form.description}</p>}
          {!form.fields.length && <p class="quiet">This playbook has no workload, so there is no value to fill in.</p>}
          {form.fields.map((field) => (
            <FormField key={field.name} field={field} value={given[field.name] ?? ""} wrong={wrong[field.name]} onChange={(value) => change(field.name, value)} />
          ))}
          {form.keychain.length > 0 && (
            <p class="quiet">
              Uses the secret{form.keychain.length > 1 ? "s" : ""}{" "}
              {form.keychain.map((each, index) => (
                <span key={each.name}>
                  {index > 0 && ", "}
                  <code>{each.name}</code> ({each.kind})
                </span>
              ))}
              ; their values are read on the worker and never shown.
            </p>
          )}
          <details>
            <summary>Labels</summary>
            <input type="text" aria-label="Labels" placeholder="team=data, owner=ada" spellcheck={false} value={labels} aria-invalid={typeof read === "string" ? "true" : undefined} onInput={(event) => setLabels(event.currentTarget.value)} />
            {typeof read === "string" && <p class="wrong">{read}</p>}
          </details>
          {refused && (
            <div class="refused" role="alert">
              <strong>{refused.title}</strong>
              <p>{refused.detail}</p>
              {refused.diagnostics.slice(0, 5).map((each, index) => (
                <p key={index}>
                  line {each.line}: <Prose text={each.message} />
                </p>
              ))}
            </div>
          )}
        </form>
      )}
    </Dialog>
  );
}

interface FormFieldProps {
  field: Field;
  value: Value;
  wrong: string | undefined;
  onChange: (value: Value) => void;
}

export function FormField({ field, value, wrong, onChange }: FormFieldProps) {
  const id = `field-${field.name}`;
  const common = {
    id,
    name: field.name,
    "aria-invalid": wrong ? ("true" as const) : undefined,
    "aria-describedby": `${id}-help`,
  };
  const text = String(value);
  const set = (event: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => onChange(event.currentTarget.value);
  let input;
  if (field.type === "boolean") {
    input = <input {...common} type="checkbox" role="switch" checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />;
  } else if (field.secret) {
    input = <input {...common} type="password" autocomplete="off" value={text} placeholder={field.required ? "" : "unchanged"} onInput={set} />;
  } else if (field.type === "list" || field.type === "mapping" || field.type === "lines") {
    input = <textarea {...common} rows={Math.min(12, Math.max(2, text.split("\n").length))} spellcheck={false} value={text} onInput={set} />;
  } else {
    const number = field.type === "integer" || field.type === "number";
    input = (
      <input
        {...common}
        type="text"
        inputMode={number ? (field.type === "integer" ? "numeric" : "decimal") : undefined}
        spellcheck={false}
        autocomplete="off"
        value={text}
        placeholder={field.type === "template" ? String(field.default) : ""}
        onInput={set}
      />
    );
  }
  return (
    <div class={`form-field ${field.type}`}>
      <label for={id}>
        {field.name}
        {field.required && <span class="badge">required</span>}
      </label>
      {input}
      <div id={`${id}-help`} class={wrong ? "wrong" : "quiet"} role={wrong ? "alert" : undefined}>
        {wrong ?? [field.help, field.secret ? "not shown" : WORDS[field.type]].filter(Boolean).join(" · ")}
      </div>
    </div>
  );
}

/** The payload of the request: only values that differ from the default. */
export async function readForm(fields: Field[], given: Record<string, Value>, start: (field: Field) => Value = begun) {
  const payload: Record<string, unknown> = {};
  const problems: Record<string, string> = {};
  const texts: Record<string, string> = {};
  for (const field of fields) {
    const value = given[field.name];
    if (value === start(field)) {
      if (field.required && value === "") problems[field.name] = "Required.";
      continue;
    }
    if (typeof value === "boolean" || field.secret || field.type === "text" || field.type === "lines") payload[field.name] = value;
    else texts[field.name] = value;
  }
  if (Object.keys(texts).length) {
    const found = await api.post<{ values: Record<string, unknown>; problems: Record<string, string> }>("/api/values", { texts });
    Object.assign(problems, found.problems);
    for (const field of fields) {
      if (!(field.name in found.values)) continue;
      const value = found.values[field.name];
      const expected = EXPECTED[field.type];
      if (expected && !expected(value)) problems[field.name] = `This must be ${WORDS[field.type].split(",")[0]}.`;
      else payload[field.name] = value;
    }
  }
  return { payload, problems };
}

const EXPECTED: Partial<Record<Kind, (value: unknown) => boolean>> = {
  integer: (value) => Number.isInteger(value),
  number: (value) => typeof value === "number",
  list: (value) => Array.isArray(value),
  mapping: (value) => typeof value === "object" && value !== null && !Array.isArray(value),
};
