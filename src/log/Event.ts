import { orderEvents } from './OrderEvent'
import { paymentEvents } from './PaymentEvent'
import { serviceEvents } from './ServiceEvent'

/** Every event that the program logs. The log takes no other, so an event without a row fails tsc. */
export const events = { ...serviceEvents, ...paymentEvents, ...orderEvents }

export type Name = keyof typeof events
