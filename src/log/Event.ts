import { orderEvents } from './OrderEvent'
import { paymentEvents } from './PaymentEvent'
import { serviceEvents } from './ServiceEvent'

/** `warn` may need the operator, `error` does. */
export type Level = 'info' | 'warn' | 'error'

/** An event of the log; docs/metrics.md is generated from these texts. */
export type Text =
  | { level: 'info'; meaning: string }
  /** `action`: what the operator does. */
  | { level: 'warn' | 'error'; meaning: string; action: string }

/** Every event that the program logs. The log takes no other, so an event without a row fails tsc. */
export const events = { ...serviceEvents, ...paymentEvents, ...orderEvents }

export type Name = keyof typeof events
