/**
 * Bodies that are read in pieces at the same moment. The runtime reserves 64 KiB for each pending
 * read, even when nothing arrives, and the garbage collector allows more garbage the more is
 * reserved: 2,000 idle uploads took 130 MB and doubled what the rest of the process took.
 */
export type Readers = {
  /**
   * Adds a body; the result takes it out again. When all places are taken, the oldest body that came
   * too slowly is given up. Undefined when there is no place.
   */
  enter(reader: Reader): (() => void) | undefined
}

export type Reader = {
  /** Key of the client (http/client-ip.ts). */
  client: string | undefined
  /** Whether it comes with a credential that we recognise. */
  isPaid: boolean
  /** Whether it has lasted long enough to be judged, and came too slowly. */
  isSlow(): boolean
  giveUp(): void
}

/** Share of the places for bodies without a credential, so that they never block paid ones. */
const unpaidShare = 1 / 2
/**
 * Shares of one client in those places. Few clients send many long bodies without paying for them.
 */
const clientShare = { paid: 1 / 4, unpaid: 1 / 32 }
const clientMin = 16

/** Places for `max` bodies. */
export function createReaders(max: number): Readers {
  const paid = createKind(max, clientShare.paid)
  const unpaid = createKind(max * unpaidShare, clientShare.unpaid)
  const isFull = () => paid.open.size + unpaid.open.size >= max
  return {
    enter(reader) {
      const kind = reader.isPaid ? paid : unpaid
      if (!kind.admits(reader.client)) return undefined
      if (isFull() || kind.isFull()) giveUpOne(unpaid.open)
      if (isFull() || kind.isFull()) giveUpOne(kind.open)
      return isFull() || kind.isFull() ? undefined : kind.add(reader)
    },
  }
}

function createKind(max: number, share: number) {
  /** In the order in which they began. */
  const open = new Set<Reader>()
  const clients = new Map<string, number>()
  const ofClientMax = Math.max(clientMin, max * share)
  const count = (client: string | undefined, change: 1 | -1) => {
    if (client === undefined) return
    const sum = (clients.get(client) ?? 0) + change
    if (sum > 0) clients.set(client, sum)
    else clients.delete(client)
  }
  return {
    open,
    isFull: () => open.size >= max,
    admits: (client: string | undefined) =>
      client === undefined || (clients.get(client) ?? 0) < ofClientMax,
    add(reader: Reader) {
      open.add(reader)
      count(reader.client, 1)
      return () => {
        open.delete(reader)
        count(reader.client, -1)
      }
    },
  }
}

/**
 * Gives up the oldest slow body. Its place is free at once, and it leaves the count when its read
 * has ended.
 */
function giveUpOne(readers: Set<Reader>): void {
  for (const reader of readers) {
    if (!reader.isSlow()) continue
    readers.delete(reader)
    reader.giveUp()
    return
  }
}
