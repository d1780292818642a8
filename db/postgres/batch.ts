import type { Change } from './commits'
import { PostgresError } from './errors'
import type { Json } from './rows'

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
export function createBatch({ call, input, enter, isRepeatable, itemsOf }: BatchOptions) {
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
