/** The form of a schedule: add or edit. */
import { useEffect, useState } from "preact/hooks";
import { api } from "../common/api";
import { Time } from "../common/times";
import { Choice, FormDialog, messageOf, PayloadField, PlaybookField, readMapping, TextField } from "./components";

export interface Schedule {
  name: string;
  path: string;
  cron: string;
  tz: string;
  version: number | null;
  description: string;
  catch_up: string;
  overlap: string;
  concurrency: number;
  jitter: number;
  deadline: number | null;
  payload: Record<string, unknown>;
  labels: Record<string, string>;
  paused: boolean;
  next_at: string | null;
  upcoming: string[];
  queued: string[];
  fired: number;
  skipped: number;
  late: number;
  last_tick: string | null;
  last_execution: string | null;
  last_error: string | null;
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

export function ScheduleForm({ known, onClose, onDone }: { known: Schedule | null; onClose: () => void; onDone: (name: string) => void }) {
  const [path, setPath] = useState(known?.path ?? "");
  const [name, setName] = useState(known?.name ?? "");
  const [cron, setCron] = useState(known?.cron ?? "0 6 * * *");
  const [tz, setTz] = useState(() => known?.tz ?? (Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC"));
  const [catchUp, setCatchUp] = useState(known?.catch_up ?? "last");
  const [overlap, setOverlap] = useState(known?.overlap ?? "allow");
  const [payload, setPayload] = useState(known && Object.keys(known.payload).length ? JSON.stringify(known.payload, null, 2) : "");
  const [jitter, setJitter] = useState(known?.jitter ? `${known.jitter}s` : "");
  const [deadline, setDeadline] = useState(known?.deadline ? `${known.deadline}s` : "");
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
    const given = await readMapping("Payload", payload);
    if (typeof given === "string") return given;
    const body = { path: path.trim(), cron: cron.trim(), tz: tz.trim(), payload: given, catch_up: catchUp, overlap, jitter: jitter.trim() || 0, deadline: deadline.trim() || null };
    const saved = known ? await api.patch<Schedule>(`/api/schedules/${encodeURIComponent(known.name)}`, body) : await api.post<Schedule>("/api/schedules", { ...body, name: name.trim() || null });
    onDone(saved.name);
  };

  return (
    <FormDialog id="schedule-form" title={known ? `Edit ${known.name}` : "Add schedule"} action={known ? "Save" : "Add"} disabled={!!refused} onClose={onClose} onSave={save}>
      <div class="pair">
        <PlaybookField id="schedule-path" value={path} onInput={setPath} />
        <TextField id="schedule-name" label="Name" hint="default: derived from the path" value={name} disabled={!!known} onInput={setName} />
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
      <div class="pair">
        <TextField id="schedule-jitter" label="Jitter" hint="starts up to 5m later" value={jitter} onInput={setJitter} />
        <TextField id="schedule-deadline" label="Deadline" hint="to succeed within: 2h" value={deadline} onInput={setDeadline} />
      </div>
      <PayloadField id="schedule-payload" value={payload} onInput={setPayload} />
    </FormDialog>
  );
}

const ZONES: string[] = (Intl as any).supportedValuesOf?.("timeZone") ?? [];
