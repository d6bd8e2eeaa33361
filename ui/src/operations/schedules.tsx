/** Schedules: next and last start; add, pause, resume, delete. */
import { useEffect, useState } from "preact/hooks";
import { api, type Page } from "../common/api";
import { useFetch } from "../common/fetch";
import { Button, EmptyState, ErrorState, Loading, notify } from "../common/components";
import { Link } from "../common/router";
import { useHasRole } from "../common/session";
import { Time } from "../common/times";
import { ListHeader, Choice, actThenReload, FormDialog, List, PlaybookField, NameCell, ConfirmDialog, TextField, messageOf } from "./components";

interface Schedule {
  name: string;
  path: string;
  cron: string;
  tz: string;
  version: number | null;
  description: string;
  catch_up: string;
  overlap: string;
  paused: boolean;
  next_at: string | null;
  upcoming: string[];
  queued: string[];
  fired: number;
  skipped: number;
  last_tick: string | null;
  last_execution: string | null;
  last_error: string | null;
}

export function Schedules() {
  const { value, problem, reload } = useFetch<Page<Schedule>>("/api/schedules", { limit: 500 }, 5000);
  const [adding, setAdding] = useState(false);
  const [removing, setRemoving] = useState<string | null>(null);
  const canEdit = useHasRole("operator");
  if (problem && !value) return <ErrorState problem={problem} retry={reload} />;
  if (!value) return <Loading what="Loading schedules" />;

  const act = actThenReload(reload);
  const remove = (name: string) => {
    setRemoving(null);
    void act(() => api.delete(route(name)), `Deleted ${name}`);
  };
  const route = (name: string) => `/api/schedules/${encodeURIComponent(name)}`;
  const add = canEdit && (
    <Button kind="primary" onClick={() => setAdding(true)}>
      Add schedule
    </Button>
  );
  return (
    <>
      {!value.items.length ? (
        <EmptyState title="No schedules yet" action={add}>
          <p>A schedule starts a playbook of the catalog at times given by a cron expression and a time zone. From a terminal:</p>
          <pre tabIndex={0}>noetl schedule add examples/hello --cron "30 6 * * mon-fri" --tz Europe/Berlin</pre>
        </EmptyState>
      ) : (
        <>
          <ListHeader words="Times are shown in your time zone; hover to see the exact time.">{add}</ListHeader>
          <List class="schedules" heads={["Schedule", "Cron", "Next run", "Last run", "Started"]}>
            {value.items.map((each) => (
              <tr key={each.name} class={each.paused ? "paused" : ""}>
                <NameCell name={each.name} path={each.path} version={each.version} />
                <td>
                  <code>{each.cron}</code> <span class="quiet">{each.tz}</span>
                  <div class="quiet">{each.description}</div>
                </td>
                <td title={each.upcoming.join("\n")}>
                  {each.paused ? <span class="status paused"><i aria-hidden="true" />paused</span> : <Time at={each.next_at} />}
                  {each.queued.length > 0 && <div class="quiet">{each.queued.length} queued</div>}
                </td>
                <td>
                  {each.last_execution ? (
                    <Link to={`/executions/${each.last_execution}`} title="Last execution">
                      <Time at={each.last_tick} />
                    </Link>
                  ) : (
                    <Time at={each.last_tick} />
                  )}
                  {each.last_error && <div class="wrong clip" title={each.last_error}>{each.last_error}</div>}
                </td>
                <td class="number">
                  {each.fired}
                  {each.skipped > 0 && <div class="quiet">{each.skipped} skipped</div>}
                </td>
                <td class="right actions">
                  {canEdit && (
                    <>
                      <Button class="small" aria-label={`Run ${each.name} now`} onClick={() => act(() => api.post(`${route(each.name)}/run`), `Started ${each.path}`)}>
                        Run now
                      </Button>{" "}
                      <Button
                        class="small"
                        aria-label={`${each.paused ? "Resume" : "Pause"} ${each.name}`}
                        onClick={() => act(() => api.post(`${route(each.name)}/${each.paused ? "resume" : "pause"}`), each.paused ? `Resumed ${each.name}` : `Paused ${each.name}`)}
                      >
                        {each.paused ? "Resume" : "Pause"}
                      </Button>{" "}
                      <Button class="small" kind="danger" aria-label={`Delete ${each.name}`} onClick={() => setRemoving(each.name)}>
                        Delete
                      </Button>
                    </>
                  )}
                </td>
              </tr>
            ))}
          </List>
        </>
      )}
      {adding && (
        <Add
          onClose={() => setAdding(false)}
          onDone={(name) => {
            setAdding(false);
            notify(`Added ${name}`);
            reload();
          }}
        />
      )}
      {removing && (
        <ConfirmDialog title={`Delete ${removing}?`} action="Delete" onClose={() => setRemoving(null)} onConfirm={() => remove(removing)}>
          It starts no more executions. Executions that it has started continue.
        </ConfirmDialog>
      )}
    </>
  );
}

const CATCH_UP: Record<string, string> = {
  last: "run the latest missed one",
  none: "skip all",
  all: "run all missed ones",
};
const OVERLAP: Record<string, string> = {
  allow: "start another execution",
  skip: "skip this run",
  queue: "queue until it ends",
  cancel: "cancel the running execution and start",
};

interface Previewed {
  description: string;
  upcoming: string[];
}

function Add({ onClose, onDone }: { onClose: () => void; onDone: (name: string) => void }) {
  const [path, setPath] = useState("");
  const [name, setName] = useState("");
  const [cron, setCron] = useState("0 6 * * *");
  const [tz, setTz] = useState(() => Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC");
  const [catchUp, setCatchUp] = useState("last");
  const [overlap, setOverlap] = useState("allow");
  const [payload, setPayload] = useState("");
  const [preview, setPreview] = useState<Previewed | null>(null);
  const [refused, setRefused] = useState("");

  useEffect(() => {
    let left = false;
    const timer = setTimeout(async () => {
      if (!cron.trim() || !tz.trim()) return;
      try {
        const found = await api.post<Previewed>("/api/schedules/preview", { cron: cron.trim(), tz: tz.trim(), count: 3 });
        if (!left) {
          setPreview(found);
          setRefused("");
        }
      } catch (error) {
        if (left) return;
        setPreview(null);
        setRefused(messageOf(error));
      }
    }, 250);
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [cron, tz]);

  const save = async () => {
    if (!path.trim()) return "Enter the path of a playbook.";
    let given: unknown = {};
    if (payload.trim()) {
      const read = await api.post<{ values: Record<string, unknown>; problems: Record<string, string> }>("/api/values", { texts: { payload } });
      if (read.problems.payload) return `Payload: ${read.problems.payload}`;
      given = read.values.payload ?? {};
      if (typeof given !== "object" || Array.isArray(given)) return "The payload must be a mapping.";
    }
    const body = { path: path.trim(), cron: cron.trim(), tz: tz.trim(), name: name.trim() || null, payload: given, catch_up: catchUp, overlap };
    onDone((await api.post<Schedule>("/api/schedules", body)).name);
  };

  return (
    <FormDialog id="schedule-form" title="Add schedule" action="Add" disabled={!!refused} onClose={onClose} onSave={save}>
      <div class="pair">
        <PlaybookField id="schedule-path" value={path} onInput={setPath} />
        <TextField id="schedule-name" label="Name" hint="default: derived from the path" value={name} onInput={setName} />
      </div>
      <div class="pair">
        <div>
          <label for="schedule-cron">Cron expression</label>
          <input id="schedule-cron" type="text" class="mono" value={cron} spellcheck={false} aria-describedby="schedule-preview" aria-invalid={refused ? "true" : undefined} onInput={(event) => setCron(event.currentTarget.value)} />
        </div>
        <TextField id="schedule-tz" label="Time zone" offered={ZONES} value={tz} onInput={setTz} />
      </div>
      <div id="schedule-preview" class="ticks" role="status">
        {refused && <p class="wrong">{refused}</p>}
        {preview && (
          <>
            <p>{preview.description}</p>
            <p class="quiet">
              next:{" "}
              {preview.upcoming.length
                ? preview.upcoming.map((each, index) => (
                    <span key={each}>
                      {index > 0 && ", "}
                      <Time at={each} />
                    </span>
                  ))
                : "never"}
            </p>
          </>
        )}
      </div>
      <div class="pair">
        <Choice id="schedule-catch-up" label="Catch-up of missed runs" value={catchUp} onChange={setCatchUp} choices={CATCH_UP} />
        <Choice id="schedule-overlap" label="If the previous execution is running" value={overlap} onChange={setOverlap} choices={OVERLAP} />
      </div>
      <div class="whole">
        <label for="schedule-payload">
          Payload <span class="quiet">(YAML or JSON, merged into the workload)</span>
        </label>
        <textarea id="schedule-payload" rows={2} spellcheck={false} value={payload} onInput={(event) => setPayload(event.currentTarget.value)} />
      </div>
    </FormDialog>
  );
}

const ZONES: string[] = (Intl as any).supportedValuesOf?.("timeZone") ?? [];
