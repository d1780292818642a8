import { certificateEvents } from './CertificateEvent'
import { orderEvents } from './OrderEvent'
import { paymentEvents } from './PaymentEvent'
import { serviceEvents } from './ServiceEvent'
import { webhookEvents } from './WebhookEvent'

/** Every event that the program logs. An event without a row here fails tsc. */
export const events = {
  ...serviceEvents,
  ...certificateEvents,
  ...paymentEvents,
  ...orderEvents,
  ...webhookEvents,
}

export type Name = keyof typeof events
