import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import { LaneLostError } from './errors'
import type { Parts } from './parts'
import type { Json } from './rows'

/** In place of a relayer: the duties of a network that need no account. No address is like it. */
export const keeper = 'keeper'

/** What one gateway sends on: a relayer of a network, or the `keeper` of the network. */
export type Lane = { network: Network.Id; relayer: string; nonce: number | null }

/** A lane that this gateway holds since an epoch. */
export type Fence = Lane & { holder: string; epoch: number; floor?: number }

/** The fence of a lane, for the first step of a write. Throws when this gateway does not hold it. */
export type Fences = (lane: Lane) => Fence

/** Without fences no write is fenced: there is one gateway. */
type Uses = Pick<Parts, 'reader'> & { fences?: Fences | undefined }

const ofTransaction = 'SELECT network, relayer, nonce FROM transactions WHERE hash = $1'
const ofJob = 'SELECT network, relayer, nonce FROM jobs WHERE id = $1'

/** The fence of a transaction's account nonce. */
export function fenceOf({ fences }: Uses, { network, relayer, nonce }: Lane): Json {
  return fences?.({ network, relayer, nonce }) ?? null
}

/**
 * The fence for an account nonce by a transaction at it. The keeper of the network may write for
 * every account here: it finds out what a reorganisation has removed.
 */
export async function fenceOfTransaction(
  { fences, reader }: Uses,
  network: Network.Id,
  hash: Hex,
): Promise<Json> {
  if (fences === undefined) return null
  const lane = await reader.one<Lane>(ofTransaction, [hash])
  const ofKeeper = { network, relayer: keeper, nonce: null }
  if (lane === undefined) return fences(ofKeeper)
  try {
    return fences(lane)
  } catch (error) {
    if (error instanceof LaneLostError) return fences(ofKeeper)
    throw error
  }
}

/** The fence for the account nonce that these transactions share. */
export async function fenceOfFirst(
  { fences, reader }: Uses,
  hashes: readonly Hex[],
): Promise<Json> {
  const [hash] = hashes
  if (fences === undefined || hash === undefined) return null
  const lane = await reader.one<Lane>(ofTransaction, [hash])
  if (lane === undefined) throw new Error(`no transaction ${hash}`)
  return fences(lane)
}

/** The fence for the account nonce of a job. */
export async function fenceOfJob({ fences, reader }: Uses, id: string): Promise<Json> {
  if (fences === undefined) return null
  const lane = await reader.one<Lane>(ofJob, [id])
  if (lane === undefined) throw new Error(`no job ${id}`)
  return fences(lane)
}

/** The key by which changes of a lane are sorted in a commit. */
export function laneKey({ network, relayer }: Pick<Lane, 'network' | 'relayer'>): string {
  return `lane:${network}:${relayer.toLowerCase()}`
}
