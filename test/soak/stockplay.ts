import { open } from '../../db/open'
import { createDesk, type Desk } from '../../src/stock/desk'
import type { Order } from '../../src/stock/Order'
import { createStore } from '../../src/stock/store'
import { createModel } from '../harness/deskmodel'
import { network, orderOf, stock } from '../harness/deskorders'
import { temporary } from '../harness/settlement'
import { createRandom } from './random'

/**
 * Plays orders against the model of a chain: every event is drawn at random, the process is killed
 * now and then, and afterwards every cent is accounted for.
 */

export type PlayOptions = {
  seed: string
  orders: number
  /** Reorganisations, too. */
  reorganises: boolean
}

export type Played = {
  orders: number
  events: number
  kills: number
  reorganisations: number
  ends: Readonly<Record<string, number>>
  refundReasons: Readonly<Record<string, number>>
  /** Swaps of which a part went back. */
  changed: number
  /** Faults that the audit found; none is right. */
  faults: readonly string[]
}

/** Plays to the end of all orders and audits. */
export async function play(options: PlayOptions): Promise<Played> {
  const random = createRandom(options.seed)
  const directory = temporary()
  const db = open({ dataDir: directory.path, now: () => 1_000 })
  const model = createModel(db, random.fork('model'))
  const store = createStore(db)
  const { state } = model
  state.isStrict = random.chance(0.5)
  const placed = new Map<string, Order>()
  let clock = 1_000
  let events = 0
  let kills = 0
  let reorganisations = 0
  let desk = start()

  function start(): Desk {
    const { settlement, market } = model.connect()
    const now = () => clock
    const made = createDesk({
      db,
      settlement,
      market,
      stock,
      network,
      now,
      log: () => undefined,
      sweepMs: 5,
      laterMs: 1,
    })
    made.recover()
    return made
  }

  function buy(): void {
    const order = orderOf(random, { floorAtomic: 0n })
    const quotedAtomic = (order.usdgAtomic * state.price) / 1_000_000n
    const floorAtomic = (quotedAtomic * 99n) / 100n
    const full = model.buy({ ...order, quotedAtomic, floorAtomic }, store.insert)
    placed.set(full.id, full)
  }

  const payments = () => [...model.paid.keys()]
  const newest = (count: number) => payments().slice(-count)
  const happenings: readonly (readonly [weight: number, happen: () => void])[] = [
    [8, () => placed.size < options.orders && buy()],
    [9, () => payments().length > 0 && model.endPayment(random.pick(newest(40)), true)],
    [1, () => payments().length > 0 && model.endPayment(random.pick(newest(40)), false)],
    [16, () => model.mine(random.chance(0.03))],
    [3, () => (state.price = (state.price * BigInt(random.between(985, 1_015))) / 1_000n)],
    [1, () => (state.isDrained = random.chance(0.2))],
    [1, () => (state.isPaused = random.chance(0.2))],
    [1, () => toggle(orderOf(random).recipient)],
    [2, () => (state.faults = random.pick([0, 0, 0.1, 0.5, 1]))],
    [1, () => (state.silent = random.pick([0, 0, 0.1]))],
    [1, () => (state.shallow = random.pick([0, 0.3, 1]))],
    [1, () => (state.strangers = random.pick([0, 0, 0.3]))],
    [1, () => (clock += random.pick([0, 1_000, 60_000]))],
    [1, () => placed.size > 0 && retry(random.pick([...placed.keys()]))],
    [2, () => model.pass(BigInt(random.between(1, 8)))],
    [1, () => kill()],
    [options.reorganises ? 4 : 0, () => reorganise()],
  ]
  const total = happenings.reduce((sum, [weight]) => sum + weight, 0)

  function toggle(person: string): void {
    if (!state.blocked.delete(person)) state.blocked.add(person)
  }
  function retry(id: string): void {
    store.requestRetry(id, clock)
    desk.drive(id)
  }
  function kill(): void {
    model.kill()
    void desk.stop()
    desk = start()
    kills++
  }
  function reorganise(): void {
    reorganisations++
    if (random.chance(0.3)) model.reorganiseDeeply()
    else if (random.chance(0.5) || payments().length === 0) model.reorganise()
    else model.dropPayment(random.pick(newest(10)))
  }

  function happen(): void {
    let drawn = random.next() * total
    const chosen = happenings.find(([weight]) => {
      drawn -= weight
      return drawn < 0
    })
    chosen?.[1]()
    events++
  }

  try {
    while (placed.size < options.orders) {
      happen()
      if (random.chance(0.4)) await turn()
    }
    // The storm is over: everything must come to its end by itself.
    Object.assign(state, { isDrained: false, isPaused: false, faults: 0, silent: 0 })
    state.blocked.clear()
    for (let look = 0; look < 20_000; look++) {
      const open = store.open().filter(isOpen)
      for (const id of model.unpaid()) model.endPayment(id, true)
      for (const { id, state: at } of open) if (at === 'held' && look % 10 === 0) retry(id)
      model.mine(false)
      model.pass(1n)
      await turn()
      if (open.length === 0 && !model.mine(false)) break
    }
    await desk.stop()
    const ended = [...placed.keys()].flatMap((id) => store.find(id) ?? [])
    return {
      orders: placed.size,
      events,
      kills,
      reorganisations,
      ends: count(ended.map((order) => order.state)),
      changed: model.swaps.filter(({ returnedAtomic }) => returnedAtomic > 0n).length,
      refundReasons: count(ended.flatMap((order) => order.refundReason ?? [])),
      faults: audit(model, ended),
    }
  } finally {
    model.kill()
    db.close()
    directory.remove()
  }
}

/** A swap whose Transfer is missing stays with the operator: it can never be refunded. */
function isOpen(order: Order): boolean {
  if (order.state === 'held') return order.heldReason !== 'delivery-not-found'
  return !['delivered', 'refunded', 'failed'].includes(order.state)
}

function audit(model: ReturnType<typeof createModel>, orders: readonly Order[]): string[] {
  const faults: string[] = []
  let paidAtomic = 0n
  for (const order of orders) {
    const { id, state, payer, recipient, totalAtomic, usdgAtomic } = order
    const isPaid = model.paid.get(order.paymentId)?.isPaid === true
    if (isPaid) paidAtomic += totalAtomic
    const swaps = model.swaps.filter((each) => each.orderId === id)
    const refunds = model.refunds.filter((each) => each.orderId === id)
    const fault = (what: string) => void faults.push(`${id} ${state}: ${what}`)
    if (swaps.length + refunds.length !== (isPaid ? 1 : 0)) {
      fault(`${swaps.length} swaps and ${refunds.length} refunds, paid: ${isPaid}`)
    }
    const [swap] = swaps
    const [refund] = refunds
    if (swap && (swap.usdgAtomic !== usdgAtomic || swap.recipient !== recipient)) fault('swap')
    if (swap && swap.payer !== payer) fault('what was not swapped went to somebody else')
    if (swap && swap.sharesAtomic < order.floorAtomic) fault('below the floor')
    if (refund && (refund.amountAtomic !== totalAtomic || refund.payer !== payer)) fault('refund')
    const isTold =
      (state === 'delivered' &&
        order.deliveredAtomic === swap?.sharesAtomic &&
        (order.returnedAtomic ?? 0n) === swap?.returnedAtomic) ||
      (state === 'held' && order.heldReason === 'delivery-not-found' && swap !== undefined) ||
      (state === 'refunded' && refund !== undefined) ||
      (state === 'failed' && !isPaid)
    if (!isTold) fault('not what happened')
  }
  const swapped = model.swaps.reduce((sum, each) => sum + each.usdgAtomic - each.returnedAtomic, 0n)
  const returned = model.swaps.reduce((sum, each) => sum + each.returnedAtomic, 0n)
  const refunded = model.refunds.reduce((sum, each) => sum + each.amountAtomic, 0n)
  if (paidAtomic !== swapped + returned + refunded) {
    faults.push(
      `${paidAtomic} paid, ${swapped} swapped, ${returned} returned, ${refunded} refunded`,
    )
  }
  if (model.state.deskAtomic !== 0n) faults.push(`the desk is left with ${model.state.deskAtomic}`)
  return faults
}

function count(names: readonly string[]): Record<string, number> {
  const counts: Record<string, number> = {}
  for (const name of names) counts[name] = (counts[name] ?? 0) + 1
  return counts
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
