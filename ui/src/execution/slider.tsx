/** The time slider: one position per event; at the right end it follows the log. */
import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "../common/components";
import { duration, exactly, shortTime } from "../common/times";
import type { Log } from "./log";

const PLAYED_IN = 9000; // ms for a whole log
const FRAME = 60;

interface Props {
  log: Log;
  /** The selected sequence number; null follows the latest event. */
  at: number | null;
  onAt: (at: number | null) => void;
  ended: boolean;
}

export function Slider({ log, at, onAt, ended }: Props) {
  const length = log.length;
  const seq = at ?? length;
  const [playing, setPlaying] = useState(false);
  const place = useRef(seq);
  place.current = seq;
  useEffect(() => {
    if (!playing) return;
    const by = Math.max(1, Math.round((length * FRAME) / PLAYED_IN));
    const timer = setInterval(() => {
      const next = place.current + by;
      if (next >= log.length) {
        setPlaying(false);
        onAt(null);
      } else onAt(next);
    }, Math.max(FRAME, Math.min(400, PLAYED_IN / Math.max(1, length))));
    return () => clearInterval(timer);
  }, [playing]);
  const play = () => {
    if (at === null) onAt(1);
    setPlaying(!playing);
  };
  const move = (to: number) => {
    setPlaying(false);
    onAt(to >= log.length ? null : Math.max(1, to));
  };
  const shown = Math.min(seq, length);
  return (
    <div class="slider card">
      <Button class="small" onClick={play} aria-label={playing ? "Stop replay" : "Replay from here"} title={playing ? "Stop" : "Replay"} disabled={!length}>
        {playing ? "❚❚" : "▶"}
      </Button>
      <Button class="small" onClick={() => move(shown - 1)} disabled={shown <= 1} aria-label="Previous event">
        ‹
      </Button>
      <input
        type="range"
        min={1}
        max={Math.max(1, length)}
        value={shown}
        disabled={!length}
        aria-label="Position in the log"
        aria-valuetext={length ? `event ${shown} of ${length}: ${log.nameOf(shown)}` : "no events yet"}
        onInput={(event) => move(Number(event.currentTarget.value))}
        style={{ "--done": `${length > 1 ? (100 * (shown - 1)) / (length - 1) : 100}%` }}
      />
      <Button class="small" onClick={() => move(shown + 1)} disabled={at === null} aria-label="Next event">
        ›
      </Button>
      <span class="slider-words">
        {length > 0 && (
          <>
            <b class="number">
              {shown.toLocaleString()} / {length.toLocaleString()}
            </b>
            <span class="slider-name">{log.nameOf(shown)}</span>
            <span class="quiet number" title={exactly(log.atOf(shown))}>
              {shortTime(log.atOf(shown))} (+{duration(log.atOf(shown) - log.atOf(1))})
            </span>
          </>
        )}
      </span>
      <Button class={`small live ${at === null ? "on" : ""}`} onClick={() => (setPlaying(false), onAt(null))} aria-pressed={at === null}>
        {ended ? "End" : "Live"}
      </Button>
    </div>
  );
}
