/** The form of a trigger: webhooks, NATS messages, new objects, custom events, ends of executions, plug-ins. Schedules have their own. */
import { useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { readLabels, writeLabels } from "../common/labels";
import { useHasRole } from "../common/session";
import { CheckField, Choice, FormDialog, PayloadField, PlaybookField, readMapping, TextField, type FormProps } from "./components";

export interface TriggerDefinition {
  kind: string;
  name: string;
  path: string;
  [more: string]: any;
}

type Value = string | boolean;

interface Field {
  key: string;
  label: string;
  hint?: string;
  is?: "text" | "number" | "duration" | "check" | "list" | "labels" | "mapping";
  choices?: Record<string, string>;
  otherwise?: Value;
  required?: boolean;
  /** Shown and sent only with this value of another field. */
  only?: [key: string, value: Value];
}

/** Kinds that use no credential; the role operator may change them. */
export const OPERATOR_KINDS = new Set(["schedule", "execution", "event"]);
const PLUGIN = "plugin";
const KINDS: Record<string, string> = {
  execution: "end of another playbook",
  event: "custom event of an execution",
  webhook: "signed request (webhook)",
  nats: "NATS message",
  object: "new object or file",
  [PLUGIN]: "kind of a plug-in",
};

const FIELDS: Record<string, Field[]> = {
  execution: [
    { key: "of", label: "Of playbook", hint: "pattern: reports/*", required: true },
    { key: "status", label: "Status", hint: "success, failed, cancelled", is: "list", otherwise: "success" },
  ],
  event: [
    { key: "event", label: "Event", hint: "pattern: order_*", required: true },
    { key: "of", label: "Of playbook", hint: "pattern", otherwise: "*" },
  ],
  webhook: [
    {
      key: "preset",
      label: "Signed as by",
      otherwise: "noetl",
      choices: { noetl: "NoETL", github: "GitHub", stripe: "Stripe", slack: "Slack", meta: "Meta", websub: "WebSub", hmac: "HMAC in another form", none: "not signed" },
    },
    { key: "credential", label: "Credential with the secret", hint: "default: a generated secret" },
    { key: "signature", label: "Form of the signature", hint: "YAML: header, algorithm, prefix", is: "mapping", required: true, only: ["preset", "hmac"] },
    { key: "allow_unsigned", label: "Accept requests of every sender", is: "check", otherwise: false, only: ["preset", "none"] },
    { key: "topic", label: "Topic", hint: "URL of the subscription", only: ["preset", "websub"] },
    { key: "window", label: "Greatest age of a signature", is: "duration", otherwise: "300s" },
    { key: "respond", label: "Respond", otherwise: "accepted", choices: { accepted: "at once", result: "with the output of the execution" } },
    { key: "wait", label: "Wait for the output", is: "duration", otherwise: "30s", only: ["respond", "result"] },
    { key: "headers", label: "Headers for the playbook", hint: "separated by commas", is: "list", otherwise: "" },
    { key: "raw_body", label: "Pass the body as it was sent", is: "check", otherwise: false },
  ],
  nats: [
    { key: "url", label: "Server", hint: "nats://host:4222" },
    { key: "credential", label: "Credential", hint: "instead of the server" },
    { key: "subject", label: "Subject", otherwise: ">" },
    { key: "stream", label: "Stream", hint: "JetStream: at least once" },
    { key: "consumer", label: "Durable consumer", hint: "default: one of its own" },
    { key: "start", label: "Messages of the stream", otherwise: "new", choices: { new: "new ones", all: "all" } },
  ],
  object: [
    { key: "url", label: "Address", hint: "s3://bucket/prefix or a folder", required: true },
    { key: "glob", label: "Names", hint: "pattern", otherwise: "*" },
    { key: "credential", label: "Credential", hint: "default: that of the environment" },
    { key: "poll", label: "List every", is: "duration", otherwise: "30s" },
    { key: "settle", label: "Files: unchanged for", is: "duration", otherwise: "1s" },
    { key: "changed", label: "Also changed objects", is: "check", otherwise: true },
    { key: "existing", label: "Also objects that exist already", is: "check", otherwise: false },
  ],
};

const COMMON: Field[] = [
  { key: "version", label: "Version", hint: "default: the newest", is: "number" },
  { key: "overlap", label: "If an execution is running", otherwise: "allow", choices: { allow: "start another execution", skip: "skip the delivery", queue: "queue until it ends", cancel: "cancel the running execution and start" } },
  { key: "concurrency", label: "Concurrent executions", hint: "before that applies", is: "number", otherwise: "1" },
  { key: "labels", label: "Labels", hint: "team=data, separated by commas", is: "labels" },
];

/** What a document of a trigger has beside its definition. */
const OUTSIDE = new Set(["kind", "name", "created_at", "created_by", "problem", "deliveries", "last_delivery", "cursor", "made_credential"]);

export const triggerRoute = (kind: string, name: string) => `/api/triggers/${kind}/${encodeURIComponent(name)}`;

/** The stored value of a field as it is shown. */
function shown(field: Field, value: any): Value {
  if (value === undefined || value === null) return field.otherwise ?? (field.is === "check" ? false : "");
  if (field.is === "check") return !!value;
  if (field.is === "list") return value.join(", ");
  if (field.is === "labels") return writeLabels(value);
  if (field.is === "mapping") return JSON.stringify(value, null, 2);
  return field.is === "duration" && typeof value === "number" ? `${value}s` : String(value);
}

const split = (text: string) => text.split(",").map((each) => each.trim()).filter(Boolean);

/** The value of a field as it is sent; undefined is the default. */
async function sent(field: Field, value: Value): Promise<{ value?: unknown; wrong?: string }> {
  if (typeof value === "boolean") return { value };
  const text = value.trim();
  if (field.required && !text) return { wrong: `Enter a value for “${field.label}”.` };
  if (field.is === "list") return { value: split(text) };
  if (!text) return {};
  if (field.is === "number") return /^\d+$/.test(text) ? { value: Number(text) } : { wrong: `${field.label}: ${text} is not an integer.` };
  if (field.is === "labels") {
    const read = readLabels(text);
    return typeof read === "string" ? { wrong: `${field.label}: ${read}` } : { value: read };
  }
  if (field.is === "mapping") {
    const read = await readMapping(field.label, text);
    return typeof read === "string" ? { wrong: read } : { value: read };
  }
  return { value: text };
}

interface Props extends FormProps<TriggerDefinition> {
  /** The kind of a new trigger, where only one kind is added. */
  only?: string;
  /** Called with the response, which has a generated secret. */
  onSaved?: (saved: TriggerDefinition) => void;
}

export function TriggerForm({ known, onClose, onDone, only, onSaved }: Props) {
  const isAdmin = useHasRole("admin");
  const kinds = isAdmin ? KINDS : Object.fromEntries(Object.entries(KINDS).filter(([key]) => OPERATOR_KINDS.has(key)));
  const [kind, setKind] = useState(known ? (known.kind in FIELDS ? known.kind : PLUGIN) : (only ?? "execution"));
  const [plugin, setPlugin] = useState(known?.kind ?? "");
  const [name, setName] = useState(known?.name ?? "");
  const [path, setPath] = useState(known?.path ?? "");
  const [payload, setPayload] = useState(Object.keys(known?.payload ?? {}).length ? JSON.stringify(known!.payload, null, 2) : "");
  const [values, setValues] = useState<Record<string, Value>>({});
  const defined = Object.fromEntries(Object.entries(known ?? {}).filter(([key, value]) => !OUTSIDE.has(key) && value !== null && !(key === "url" && kind === "webhook")));
  const own = kind === PLUGIN ? [] : FIELDS[kind];
  const named = new Set(["path", "payload", "paused", ...COMMON.map((field) => field.key)]);
  const [more, setMore] = useState(() => (kind === PLUGIN && known ? JSON.stringify(Object.fromEntries(Object.entries(defined).filter(([key]) => !named.has(key))), null, 2) : ""));
  const of = (field: Field) => values[`${kind}.${field.key}`] ?? shown(field, defined[field.key]);
  const applies = (field: Field) => !field.only || of(own.find((each) => each.key === field.only![0])!) === field.only[1];
  const usual = path.trim().replace(/[^A-Za-z0-9_.-]+/g, "-").replace(/^[-._]+|[-._]+$/g, "");

  const save = async () => {
    if (!path.trim()) return "Enter the path of a playbook.";
    const real = kind === PLUGIN ? plugin.trim() : kind;
    if (!/^[a-z][a-z0-9_]*$/.test(real)) return "Enter the kind of the plug-in, such as kafka.";
    const given = await readMapping("Payload", payload);
    if (typeof given === "string") return given;
    const body: Record<string, unknown> = { ...(kind === PLUGIN ? {} : defined), path: path.trim(), payload: given };
    if (kind === PLUGIN) {
      const read = await readMapping("Fields", more);
      if (typeof read === "string") return read;
      Object.assign(body, read, defined.paused ? { paused: true } : {});
    }
    for (const field of [...own, ...COMMON]) {
      const { value, wrong } = applies(field) ? await sent(field, of(field)) : {};
      if (wrong) return wrong;
      if (value === undefined) delete body[field.key];
      else body[field.key] = value;
    }
    const chosen = name.trim() || usual;
    const others = known ? null : await api.get<Page<TriggerDefinition>>("/api/triggers", { kind: real, limit: 1000 });
    if (others?.items.some((each) => each.name === chosen)) return `There is already a trigger ${chosen} of kind ${real}. Choose another name.`;
    const saved = await api.put<TriggerDefinition>(triggerRoute(real, chosen), body);
    onDone(`Saved ${saved.name}`);
    onSaved?.(saved);
  };

  const input = (field: Field) => {
    const id = `trigger-${field.key}`;
    const set = (value: Value) => setValues({ ...values, [`${kind}.${field.key}`]: value });
    if (!applies(field)) return null;
    if (field.is === "check") return <CheckField key={id} id={id} label={field.label} value={!!of(field)} onChange={set} />;
    if (field.choices) return <Choice key={id} id={id} label={field.label} value={String(of(field))} onChange={set} choices={field.choices} />;
    if (field.is === "mapping") return <PayloadField key={id} id={id} label={field.label} hint={field.hint} value={String(of(field))} onInput={set} />;
    return <TextField key={id} id={id} label={field.label} hint={field.hint} value={String(of(field))} onInput={set} />;
  };

  return (
    <FormDialog id="trigger-form" title={known ? `Edit ${known.name}` : `Add ${only ?? "trigger"}`} action="Save" onClose={onClose} onSave={save}>
      <div class="pair">
        {known ? <TextField id="trigger-kind" label="Starts on" value={KINDS[kind]} disabled onInput={() => {}} /> : !only && <Choice id="trigger-kind" label="Starts on" value={kind} onChange={setKind} choices={kinds} />}
        {kind === PLUGIN && <TextField id="trigger-plugin" label="Kind" hint="such as kafka" value={plugin} disabled={!!known} onInput={setPlugin} />}
        <TextField id="trigger-name" label="Name" hint={known || !usual ? undefined : `default: ${usual}`} value={name} disabled={!!known} onInput={setName} />
        <PlaybookField id="trigger-path" value={path} onInput={setPath} />
        {own.map(input)}
      </div>
      {kind === PLUGIN && <PayloadField id="trigger-more" label="Fields" hint="YAML or JSON: the fields of the kind" value={more} onInput={setMore} />}
      <PayloadField id="trigger-payload" hint="YAML or JSON; templates read {{ event }}" value={payload} onInput={setPayload} />
      <div class="pair">{COMMON.map(input)}</div>
      {!isAdmin && !known && <p class="quiet">Triggers that use credentials require the role admin.</p>}
    </FormDialog>
  );
}
