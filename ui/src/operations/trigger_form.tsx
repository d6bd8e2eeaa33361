/** The form of a trigger: NATS messages, new objects, ends of executions. Schedules and webhooks have their own. */
import { useState } from "preact/hooks";
import { api } from "../common/api";
import { useHasRole } from "../common/session";
import { CheckField, Choice, FormDialog, PayloadField, PlaybookField, readMapping, TextField } from "./components";

export interface TriggerDefinition {
  kind: string;
  name: string;
  path: string;
  [more: string]: any;
}

interface Field {
  key: string;
  label: string;
  hint?: string;
  is?: "text" | "check" | "list";
  otherwise?: string | boolean;
  required?: boolean;
}

const KINDS: Record<string, string> = { execution: "end of another playbook", nats: "NATS message", object: "new object or file" };

const FIELDS: Record<string, Field[]> = {
  execution: [
    { key: "of", label: "Of playbook", hint: "pattern: reports/*", required: true },
    { key: "status", label: "Status", hint: "success, failed, cancelled", is: "list", otherwise: "success" },
  ],
  nats: [
    { key: "url", label: "Server", hint: "nats://host:4222" },
    { key: "credential", label: "Credential", hint: "instead of the server" },
    { key: "subject", label: "Subject", otherwise: ">" },
    { key: "stream", label: "Stream", hint: "JetStream: at least once" },
  ],
  object: [
    { key: "url", label: "Address", hint: "s3://bucket/prefix or a folder", required: true },
    { key: "glob", label: "Names", hint: "pattern", otherwise: "*" },
    { key: "credential", label: "Credential", hint: "empty: that of the environment" },
    { key: "poll", label: "List every", hint: "30s", otherwise: "30s" },
    { key: "changed", label: "Also changed objects", is: "check", otherwise: true },
    { key: "existing", label: "Also objects that exist already", is: "check", otherwise: false },
  ],
};

const OVERLAP: Record<string, string> = {
  allow: "start another execution",
  skip: "skip the delivery",
  queue: "queue until it ends",
  cancel: "cancel the running execution and start",
};

const shown = (field: Field, value: unknown) => (value === undefined || value === null ? (field.otherwise ?? "") : field.is === "check" ? !!value : Array.isArray(value) ? value.join(", ") : field.key === "poll" ? `${value}`.replace(/^(\d+(\.\d+)?)$/, "$1s") : String(value));

export function TriggerForm({ known, onClose, onDone }: { known: TriggerDefinition | null; onClose: () => void; onDone: (name: string) => void }) {
  const isAdmin = useHasRole("admin");
  const kinds = isAdmin ? KINDS : { execution: KINDS.execution };
  const [kind, setKind] = useState(known?.kind ?? "execution");
  const [name, setName] = useState(known?.name ?? "");
  const [path, setPath] = useState(known?.path ?? "");
  const [overlap, setOverlap] = useState<string>(known?.overlap ?? "allow");
  const [payload, setPayload] = useState(known && Object.keys(known.payload ?? {}).length ? JSON.stringify(known.payload, null, 2) : "");
  const [values, setValues] = useState<Record<string, string | boolean>>({});
  const of = (field: Field) => values[`${kind}.${field.key}`] ?? shown(field, known?.[field.key]);

  const save = async () => {
    if (!name.trim()) return "Enter a name.";
    if (!path.trim()) return "Enter the path of a playbook.";
    const given = await readMapping("Payload", payload);
    if (typeof given === "string") return given;
    const body: Record<string, unknown> = { path: path.trim(), overlap, payload: given };
    for (const field of FIELDS[kind]) {
      const value = of(field);
      if (field.required && !String(value).trim()) return `Enter a value for “${field.label}”.`;
      if (field.is === "check") body[field.key] = value;
      else if (field.is === "list") body[field.key] = String(value).split(",").map((each) => each.trim()).filter(Boolean);
      else if (String(value).trim()) body[field.key] = String(value).trim();
    }
    if (known?.version) body.version = known.version;
    if (known && Object.keys(known.labels ?? {}).length) body.labels = known.labels;
    await api.put(`/api/triggers/${kind}/${encodeURIComponent(name.trim())}`, body);
    onDone(name.trim());
  };

  const fields = FIELDS[kind];
  return (
    <FormDialog id="trigger-form" title={known ? `Edit ${known.name}` : "Add trigger"} action="Save" onClose={onClose} onSave={save}>
      <div class="pair">
        {known ? <TextField id="trigger-kind" label="Starts on" value={KINDS[kind]} disabled onInput={() => {}} /> : <Choice id="trigger-kind" label="Starts on" value={kind} onChange={setKind} choices={kinds} />}
        <TextField id="trigger-name" label="Name" value={name} disabled={!!known} onInput={setName} />
      </div>
      <div class="pair">
        <PlaybookField id="trigger-path" value={path} onInput={setPath} />
        <Choice id="trigger-overlap" label="If an execution is running" value={overlap} onChange={setOverlap} choices={OVERLAP} />
      </div>
      <div class="pair">
        {fields.map((field) =>
          field.is === "check" ? (
            <CheckField key={field.key} id={`trigger-${field.key}`} label={field.label} value={!!of(field)} onChange={(value) => setValues({ ...values, [`${kind}.${field.key}`]: value })} />
          ) : (
            <TextField key={field.key} id={`trigger-${field.key}`} label={field.label} hint={field.hint} value={String(of(field))} onInput={(value) => setValues({ ...values, [`${kind}.${field.key}`]: value })} />
          ),
        )}
      </div>
      <PayloadField id="trigger-payload" value={payload} onInput={setPayload} />
      {!isAdmin && !known && <p class="quiet">Triggers of NATS messages and objects use credentials and require the role admin.</p>}
    </FormDialog>
  );
}
