import type { Hex } from 'viem'
import type * as Network from '../../src/protocol/Network'
import type { Parts } from './parts'
import type { Json } from './rows'

/** What one gateway sends on: a relayer of a network, or the `keeper` of the network. */
export type Lane = { network: Network.Id; relayer: string; nonce: number | null }

/** A lane that this gateway holds since an epoch. */
export type Fence = Lane & { holder: string; epoch: number }

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

/** The fence for an account nonce by a transaction at it; the keeper's for an external one. */
export async function fenceOfTransaction(
  { fences, reader }: Uses,
  network: Network.Id,
  hash: Hex,
): Promise<Json> {
  if (fences === undefined) return null
  const lane = await reader.one<Lane>(ofTransaction, [hash])
  return fences(lane ?? { network, relayer: 'keeper', nonce: null })
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
