/** `warn` may need the operator, `error` does. */
export type Level = 'info' | 'warn' | 'error'

/** An event of the log; docs/metrics.md is generated from these texts. */
export type EventText =
  | { level: 'info'; meaning: string }
  /** `action`: what the operator does. */
  | { level: 'warn' | 'error'; meaning: string; action: string }
