import type { Payment } from '../../../db/Payment'
import type { JobEnd } from '../send/Job'
import type { Outcome } from '../send/Outcome'

/** The part of a metrics registry that settlement needs. */
export type Meter = {
  counter(name: string, help: string, labels?: readonly string[]): Counter
  gauge(name: string, help: string, labels?: readonly string[]): Gauge
  histogram(
    name: string,
    help: string,
    buckets: readonly number[],
    labels?: readonly string[],
  ): { observe(value: number, labels?: Labels): void }
  /** Called before the metrics are read. */
  onRender(update: () => void): void
}

export type Labels = Readonly<Record<string, string>>
export type Counter = { inc(labels?: Labels, by?: number): void }
export type Gauge = { set(value: number, labels?: Labels): void }

type Paid = Pick<Payment, 'transfer' | 'purpose'>

/** `failed`: by the payer's doing. `lost`: its time ended before it was settled. */
type ChargeOutcome = 'metered' | 'void' | 'failed' | 'lost'

const secondsBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
const sizeBuckets = [1, 2, 4, 8, 16, 32, 64, 128]

/** Events that settlement reports while it runs. */
export type Metrics = ReturnType<typeof createMetrics>

/** Registers the metrics of events once. */
export function createMetrics(meter: Meter) {
  const counter = (name: string, help: string, ...labels: string[]) =>
    meter.counter(name, help, labels)
  const asked = 'Settlements asked for, by how they ended.'
  const payments = counter('payments_total', asked, 'network', 'protocol', 'outcome')
  const waited = 'Time from a request with a credential to its confirmation.'
  const seconds = meter.histogram('settle_seconds', waited, secondsBuckets, ['network'])
  const size = 'Payments per settling transaction.'
  const sizes = meter.histogram('batch_size', size, sizeBuckets, ['network'])
  const usd =
    'USD of confirmed payments, as if 1 stablecoin were 1 USD. The merchant stock includes what is swapped for shares.'
  const paid = counter('paid_usd_total', usd, 'network', 'merchant')
  const again = 'Transactions sent again with higher fees.'
  const replaced = counter('replaced_transactions_total', again, 'network')
  const removed = 'Confirmed payments whose transaction a reorganisation removed.'
  const reorged = counter('reorged_payments_total', removed, 'network')
  const unpaid = 'Payments with a proven signature that cost gas and did not pay.'
  const failed = counter('failed_payments_total', unpaid, 'network')
  const byUse = 'Charges by use (x402 upto), by their outcome.'
  const charges = counter('charges_total', byUse, 'network', 'outcome')
  const sent = 'Transactions of payment channels, by kind and end.'
  const channelJobs = counter('channel_transactions_total', sent, 'network', 'kind', 'outcome')
  return {
    /** A caller got its outcome. `duration`: seconds since the request arrived. */
    settled(
      { transfer: { network }, purpose: { protocol } }: Paid,
      outcome: Outcome,
      duration: number,
    ): void {
      payments.inc({ network, protocol, outcome: outcome.kind })
      if (outcome.kind === 'confirmed') seconds.observe(Math.max(0, duration), { network })
    },
    /** A transaction with this many payments is sent for the first time. */
    batched: (network: string, size: number) => sizes.observe(size, { network }),
    /** The money of a payment has arrived. Settlements for other servers are not counted. */
    paid({ transfer: { network, amountAtomic }, purpose: { product, merchant } }: Paid): void {
      if (product === 'facilitator') return
      paid.inc(
        { network, merchant: product === 'desk' ? 'stock' : merchant },
        Number(amountAtomic) / 1e6,
      )
    },
    replaced: (network: string) => replaced.inc({ network }),
    reorged: (network: string, count: number) => reorged.inc({ network }, count),
    failed: (network: string) => failed.inc({ network }),
    /** A charge by use was written, or was given up. */
    charged: (network: string, outcome: ChargeOutcome) => charges.inc({ network, outcome }),
    /** A transaction of payment channels ended, or is not decided in time. */
    channelJob: (network: string, kind: ChannelJob, outcome: JobEnd['kind']) =>
      channelJobs.inc({ network, kind, outcome }),
  }
}

type ChannelJob = 'deposit' | 'claim' | 'sweep' | 'refund'
