import type { Payment } from '../../../db/Payment'
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

type Labels = Readonly<Record<string, string>>
type Counter = { inc(labels?: Labels, by?: number): void }
type Gauge = { set(value: number, labels?: Labels): void }

/** Events that settlement reports while it runs. */
export type Metrics = {
  /** A caller got its outcome. `seconds`: since the request arrived. */
  settled(payment: Pick<Payment, 'transfer' | 'purpose'>, outcome: Outcome, seconds: number): void
  /** A transaction with this many payments is sent for the first time. */
  batched(network: string, size: number): void
  replaced(network: string): void
  /** The money of a payment has arrived. Settlements for other servers are not counted. */
  paid(payment: Pick<Payment, 'transfer' | 'purpose'>): void
  reorged(network: string, payments: number): void
  failed(network: string): void
  /** A charge by use was written, or was given up. */
  charged(network: string, outcome: ChargeOutcome): void
}

/** `failed`: by the payer's doing. `lost`: its time ended before it was settled. */
export type ChargeOutcome = 'metered' | 'void' | 'failed' | 'lost'

/**
 * Values that are read when the metrics are rendered; from memory, except gas, which takes one
 * indexed read each.
 */
export type Sources = {
  networks(): readonly {
    network: string
    calls: ReadonlyMap<string, number>
    faults: ReadonlyMap<string, number>
    ready: boolean
    /** Ms by which blocks prove our clock ahead; negative: behind. */
    clockSkewMs: number
    newHeads: boolean
    relayers: readonly {
      relayer: string
      paused: string | undefined
      inFlight: number
      balanceWei: bigint | undefined
    }[]
    gas: readonly { product: string; spentWei: bigint; budgetWei: bigint }[]
  }[]
  /** What each merchant may lose by `upto`, and has lost within a day, atomic. */
  risks(): ReadonlyMap<string, bigint>
  /** Payments of each network whose transaction is not confirmed. */
  pending(): Promise<ReadonlyMap<string, number>>
}

const secondsBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]
const sizeBuckets = [1, 2, 4, 8, 16, 32, 64, 128]

/** Registers all metrics once. */
export function createMetrics(meter: Meter, sources: Sources): Metrics {
  const payments = meter.counter('payments_total', 'Settlements asked for, by how they ended.', [
    'network',
    'protocol',
    'outcome',
  ])
  const seconds = meter.histogram(
    'settle_seconds',
    'Time from a request with a credential to its confirmation.',
    secondsBuckets,
    ['network'],
  )
  const sizes = meter.histogram('batch_size', 'Payments per settling transaction.', sizeBuckets, [
    'network',
  ])
  const paid = meter.counter(
    'paid_usd_total',
    'USD of confirmed payments, as if 1 stablecoin were 1 USD. The merchant stock includes what is swapped for shares.',
    ['network', 'merchant'],
  )
  const replaced = meter.counter(
    'replaced_transactions_total',
    'Transactions sent again with higher fees.',
    ['network'],
  )
  const reorged = meter.counter(
    'reorged_payments_total',
    'Confirmed payments whose transaction a reorganisation removed.',
    ['network'],
  )
  const failed = meter.counter(
    'failed_payments_total',
    'Payments with a proven signature that cost gas and did not pay.',
    ['network'],
  )
  const charges = meter.counter('charges_total', 'Charges by use (x402 upto), by their outcome.', [
    'network',
    'outcome',
  ])
  meter.onRender(observer(meter, sources))
  return {
    settled({ transfer: { network }, purpose: { protocol } }, outcome, duration) {
      payments.inc({ network, protocol, outcome: outcome.kind })
      if (outcome.kind === 'confirmed') seconds.observe(Math.max(0, duration), { network })
    },
    batched: (network, size) => sizes.observe(size, { network }),
    paid({ transfer: { network, amountAtomic }, purpose: { product, merchant } }) {
      if (product === 'facilitator') return
      paid.inc(
        { network, merchant: product === 'desk' ? 'stock' : merchant },
        Number(amountAtomic) / 1e6,
      )
    },
    replaced: (network) => replaced.inc({ network }),
    reorged: (network, count) => reorged.inc({ network }, count),
    failed: (network) => failed.inc({ network }),
    charged: (network, outcome) => charges.inc({ network, outcome }),
  }
}

/** Reads totals that other modules keep. */
function observer(meter: Meter, sources: Sources): () => void {
  const calls = totals(meter.counter('rpc_calls_total', 'JSON-RPC calls.', ['network', 'method']))
  const faults = totals(
    meter.counter('rpc_faults_total', 'JSON-RPC calls without a usable answer.', [
      'network',
      'method',
    ]),
  )
  const ready = meter.gauge('network_ready', 'Whether a network can settle.', ['network'])
  const heads = meter.gauge('new_heads_live', 'Whether new blocks are announced.', ['network'])
  const skew = meter.gauge(
    'clock_skew_seconds',
    'Seconds by which blocks prove the clock of this machine ahead; below 0: behind.',
    ['network'],
  )
  const paused = states(
    meter.gauge('relayer_paused', 'Relayers that send nothing new, with the reason.', [
      'network',
      'relayer',
      'reason',
    ]),
  )
  const relayer = ['network', 'relayer']
  const inFlight = meter.gauge('relayer_transactions', 'Transactions under way.', relayer)
  const balance = meter.gauge('relayer_balance_wei', 'Balance of a relayer for gas.', relayer)
  const day = ['network', 'product']
  const spent = meter.gauge('gas_spent_today_wei', 'Gas spent this UTC day.', day)
  const budget = meter.gauge('gas_budget_wei', 'Gas that a UTC day may cost.', day)
  const pending = states(
    meter.gauge('pending_payments', 'Payments sent and not confirmed.', ['network']),
  )
  const risk = meter.gauge(
    'merchant_losses_usd',
    'Answers by upto beyond what their payers have paid: open ones, and those lost within a day.',
    ['merchant'],
  )
  return async () => {
    for (const [merchant, atomic] of sources.risks()) risk.set(Number(atomic) / 1e6, { merchant })
    const underWay = await sources.pending()
    for (const each of sources.networks()) {
      const { network } = each
      for (const [method, count] of each.calls) calls({ network, method }, count)
      for (const [method, count] of each.faults) faults({ network, method }, count)
      ready.set(each.ready ? 1 : 0, { network })
      skew.set(each.clockSkewMs / 1000, { network })
      heads.set(each.newHeads ? 1 : 0, { network })
      for (const { relayer, balanceWei, ...state } of each.relayers) {
        inFlight.set(state.inFlight, { network, relayer })
        if (balanceWei !== undefined) balance.set(Number(balanceWei), { network, relayer })
        if (state.paused === undefined) continue
        paused.put(1, { network, relayer, reason: kindOf(state.paused) })
      }
      for (const { product, spentWei, budgetWei } of each.gas) {
        spent.set(Number(spentWei), { network, product })
        budget.set(Number(budgetWei), { network, product })
      }
    }
    for (const [network, count] of underWay) pending.put(count, { network })
    paused.finish()
    pending.finish()
  }
}

/** A reason without its figures, because each figure would create a series. */
function kindOf(reason: string): string {
  return reason.replace(/\b(0x[0-9a-f]+|\d+)\b/gi, 'N')
}

/** A counter whose total another module keeps. */
function totals(counter: Counter): (labels: Labels, total: number) => void {
  const seen = new Map<string, number>()
  return (labels, total) => {
    const key = Object.values(labels).join('\0')
    const more = total - (seen.get(key) ?? 0)
    seen.set(key, total)
    if (more > 0) counter.inc(labels, more)
  }
}

/** Sets the gauge to 0 for labels that are no longer present. */
function states(gauge: Gauge) {
  let before = new Map<string, Labels>()
  let current = new Map<string, Labels>()
  return {
    put(value: number, labels: Labels): void {
      const key = Object.values(labels).join('\0')
      before.delete(key)
      current.set(key, labels)
      gauge.set(value, labels)
    },
    finish(): void {
      for (const labels of before.values()) gauge.set(0, labels)
      before = current
      current = new Map()
    },
  }
}

/** Counts nothing: for a service without metrics. */
export const silent: Meter = {
  counter: () => ({ inc() {} }),
  gauge: () => ({ set() {} }),
  histogram: () => ({ observe() {} }),
  onRender() {},
}
