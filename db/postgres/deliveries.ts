import type { DeliveryCommits } from '../Ledger'
import { toPayment } from '../rows'
import * as Event from '../WebhookEvent'
import type { Change } from './commits'
import { PostgresError } from './errors'
import type { Parts } from './parts'
import { arrayText, type Json } from './rows'

/** `gateway` is who delivers: another live gateway neither begins nor ends its delivery. */
export function createDeliveries({
  commits,
  gateway: by,
}: Pick<Parts, 'commits' | 'gateway'>): DeliveryCommits {
  const enter = commits.add
  const begin = createBatch({ call: 'begin_delivery', input: { by }, enter })
  // A delivered answer has been sent already, so its record need not wait for the disk.
  const deliver = createBatch({
    call: 'deliver',
    input: { by },
    enter: commits.addSoon,
    // What is delivered stays so, whichever of two runs comes last.
    isRepeatable: true,
    itemsOf: (items) => ({
      ids: arrayText(items.map(({ id }) => id)),
      statuses: arrayText(items.map(({ status }) => Number(status))),
      flags: arrayText(items.map(({ truncated }) => truncated === true)),
      times: arrayText(items.map(({ at }) => Number(at))),
    }),
  })
  const handOver = createBatch({ call: 'hand_over', enter })
  const markAnswered = createBatch({ call: 'mark_answered', enter })
  return {
    async begin(id, attempts) {
      const row = await begin({ id, attempts: attempts ?? null })
      return row === undefined ? undefined : toPayment(row)
    },
    deliver: async (id, { upstreamStatus: status, truncated }, at) =>
      (await deliver({ id, status, truncated, at })) === true,
    // The token must be on the disk before its buyer has it.
    fail: (id, { upstreamStatus, redeemTokenHash, redeemUntil }, at) =>
      commits.add({
        call: 'fail_delivery',
        input: {
          id,
          status: upstreamStatus ?? null,
          hash: redeemTokenHash,
          until: redeemUntil,
          by,
        },
        key: id,
        read: (row) => row !== null,
        events: {
          types: ['delivery.failed'],
          of: (row) => (row === null ? [] : [Event.deliveryFailed(toPayment(row), at)]),
        },
      }),
    handOver: async (id, at) => (await handOver({ id, at })) === true,
    async markAnswered(id) {
      await markAnswered({ id })
    },
  }
}

type Item = { readonly id: string; readonly [key: string]: Json | undefined }
type Results = { readonly [id: string]: Json | undefined }

type BatchOptions = {
  /** A function that takes `items`, and returns a member of its value for each id that it changed. */
  call: string
  /** Further members of its input. */
  input?: Readonly<Record<string, Json>>
  enter(change: Change<Results>): Promise<Results>
  isRepeatable?: boolean
  /** How the items are passed; by default as `items`. */
  itemsOf?: (items: readonly Item[]) => Readonly<Record<string, Json>>
}

/** More rows in one statement hold their locks for too long. */
const itemsMax = 256

let batches = 0

/**
 * Lets changes of different payments share one call until its commit begins: a statement for many rows
 * costs little more than for one. Resolves with the payment's part of the value.
 */
function createBatch({ call, input, enter, isRepeatable, itemsOf }: BatchOptions) {
  const inputOf = (items: readonly Item[]) => ({ ...input, ...(itemsOf?.(items) ?? { items }) })
  const common = { call, ...(isRepeatable && { isRepeatable }) }
  let open: { items: Map<string, Item>; end: Promise<Results> } | undefined
  const begin = () => {
    const items = new Map<string, Item>()
    batches++
    const change: Change<Results> = {
      ...common,
      input() {
        if (open?.items === items) open = undefined
        return inputOf([...items.values()])
      },
      // In the order in which they began: a later change of a payment must not overtake an earlier one.
      key: `payments:${String(batches).padStart(16, '0')}`,
      read: (value) => value as Results,
    }
    open = { items, end: enter(change) }
    return open
  }
  const alone = (item: Item) =>
    enter({
      ...common,
      input: inputOf([item]),
      key: item.id,
      read: (value) => value as Results,
    })
  return async (item: Item): Promise<Json | undefined> => {
    const isFree = open && open.items.size < itemsMax && !open.items.has(item.id)
    const batch = isFree && open ? open : begin()
    batch.items.set(item.id, item)
    try {
      return (await batch.end)[item.id]
    } catch (error) {
      // The change of another payment may have failed them all.
      if (!(error instanceof PostgresError) || batch.items.size === 1) throw error
      return (await alone(item))[item.id]
    }
  }
}
