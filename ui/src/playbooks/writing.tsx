/** The editor as a component: it comes when its code has been loaded, and says so until then. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Diagnostic } from "../frame/api";
import { ErrorState, Loading } from "../frame/pieces";
import type { Opened } from "./editor";

interface WritingProps {
  /** What the editor begins with; a new object replaces what is written. Between, the editor's own text is the truth:
   * handing back what was typed would overtake what is being typed. */
  given: { text: string };
  readOnly: boolean;
  label: string;
  found: Diagnostic[];
  docs: string;
  /** Where to go: a new object each time. */
  target: { line: number; column: number } | null;
  onExplain: (code: string) => void;
  onChange: (text: string) => void;
  onSave: () => void;
  onRun: () => void;
}

export function Writing(props: WritingProps) {
  const place = useRef<HTMLDivElement>(null);
  const opened = useRef<Opened | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [loaded, setLoaded] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);

  useEffect(() => {
    let left = false;
    import("./editor").then(
      ({ open }) => {
        if (left || !place.current) return;
        const { given, readOnly, label } = latest.current;
        opened.current = open(place.current, {
          text: given.text,
          readOnly,
          label,
          docs: () => latest.current.docs,
          onExplain: (code) => latest.current.onExplain(code),
          onChange: (changed) => latest.current.onChange(changed),
          onSave: () => latest.current.onSave(),
          onRun: () => latest.current.onRun(),
        });
        setLoaded(true);
      },
      (error) => setFailed(error),
    );
    return () => {
      left = true;
      opened.current?.close();
      opened.current = null;
    };
  }, []);
  useEffect(() => opened.current?.set(props.given.text), [props.given]);
  useEffect(() => opened.current?.mark(props.found), [props.found, loaded]);
  useEffect(() => {
    if (props.target) opened.current?.goTo(props.target.line, props.target.column);
  }, [props.target]);

  if (failed) return <ErrorState problem="The editor could not be loaded; reload the page to try again." />;
  return (
    <div class="writing" ref={place}>
      {!loaded && <Loading what="Opening the editor" />}
    </div>
  );
}
