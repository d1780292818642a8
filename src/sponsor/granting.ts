import type { Address, Hex } from 'viem'
import type { GrantRow } from '../../db/schema'
import { RpcError, RpcFault } from '../chain/client'
import * as AddressText from '../protocol/Address'
import * as Permit from '../protocol/Permit'
import type { Code } from '../protocol/Problem'
import type { Meter } from '../settlement/state/metrics'
import { createClients, networkOf } from './clients'
import { idle } from './facts'
import * as Grant from './Grant'
import { type Judged, judge, judgeAgain } from './judge'
import type { Funded, Ledger, Sponsored, SponsorSettlement } from './ledger'
import {
  type GrantRefusal,
  notReady,
  refuse,
  refusedBy,
  spent,
  tooMany,
  unsigned,
  unusedGrant,
} from './refusals'
import { createSemaphore, type Semaphore } from './semaphore'

/** A request for a grant. */
export type SponsorRequest = {
  address: unknown
  network?: unknown
  signature?: unknown
  /** The client for the counters: its IPv4 address or the /64 of its IPv6 address. */
  client: string
}

/** JSON of a grant. */
export type Granted = {
  granted: true
  transaction: Hex
  amountWei: string
  network: string
  token: Address
  spender: Address
  /** The approve to sign and send: the address's balance now pays for it. */
  approve: Grant.Approve
  /** Ways that this address could have used without a grant. */
  alternatives: readonly Grant.Alternative[]
}

export type Result = { kind: 'granted'; body: Granted } | GrantRefusal

type Amount = Extract<Judged, { kind: 'amount' }>

export type Granting = {
  /** Answers one request; a grant is confirmed then. Rejects only on internal faults. */
  grant(request: SponsorRequest): Promise<Result>
}

export type GrantingOptions = {
  settlement: SponsorSettlement
  ledger: Ledger
  networks: readonly Sponsored[]
  /** Accounts that get nothing: our own, and contracts of the network. */
  excluded: readonly Address[]
  meter: Meter
  now: () => number
  waitMs: () => number
}

/** Requests that read the chain at once, and those that wait. */
const readingMax = 8
const waitingMax = 256

const unusedMaxAgeMs = 1_000
const lookedMax = 1_000

/** Refusals of one request, not of its address. */
const ownCodes: readonly Code[] = ['signature-required', 'rate-limited']

const known = {
  'under-way': 'The address is being sponsored; the transaction is on its way.',
  confirmed: 'The address was sponsored before; it happens once.',
  lost: 'The address was sponsored before; the grant did not arrive and is not repeated.',
} as const

type Asked = { network: Sponsored; address: Address; signature: string | undefined }

type Context = GrantingOptions & {
  clients: ReturnType<typeof createClients>
  /** By the id of the grant; registered before the first await. */
  underWay: Map<string, Promise<Result>>
  semaphore: Semaphore
  /** Time (unix ms) of the last read of the use of grants, by the network of clients. */
  readAt: Map<string, number>
}

/** Gives native coin for one approve, once per address. */
export function createGranting(options: GrantingOptions): Granting {
  const { networks, meter } = options
  const excluded = new Set(options.excluded.map((address) => address.toLowerCase()))
  const context: Context = {
    ...options,
    clients: createClients(),
    underWay: new Map(),
    semaphore: createSemaphore(readingMax, waitingMax),
    readAt: new Map(),
  }
  const refusals = meter.counter('sponsor_refusals_total', 'Grants refused.', ['reason'])
  return {
    async grant(request) {
      const asked = parse(request, networks, excluded)
      const result = 'kind' in asked ? asked : await grant(context, asked, request.client)
      if (result.kind === 'granted') return result
      refusals.inc({ reason: result.code })
      if ('kind' in asked) return result
      const alternatives = Grant.alternatives(asked.network.asset)
      return { ...result, members: { ...result.members, alternatives } }
    },
  }
}

/** Sends a grant, or the top-up of one (`row`), if all checks pass. */
async function fund(
  context: Context,
  asked: Asked,
  client: string,
  row?: GrantRow,
): Promise<Result> {
  const { settlement, ledger, semaphore, clients, now } = context
  const { network, address } = asked
  const day = Grant.dayOf(now())
  const refusal = await refuseEarly(context, asked, client, day)
  if (refusal) return refusal
  const isTopped = (await ledger.findTopUp(network.id, address)) !== undefined
  const judging = semaphore.run(() =>
    row ? judgeAgain(settlement, network, row, isTopped) : judge(settlement, network, address),
  )
  if (judging === undefined) return notReady('Too many requests are being checked.', 1)
  const judged = await judging
  if (judged.kind === 'too-expensive') return notReady('Gas costs more than a grant may be.', 60)
  if (judged.kind === 'refused') return refusedBy(judged)
  if (!clients.take(client, day, address)) return tooMany(now())
  const request = {
    network,
    address,
    amountWei: judged.wei,
    isSigned: asked.signature !== undefined,
    approveHash: undefined,
    isTopUp: row !== undefined,
  }
  const funded = await ledger.fund(request, { waitMs: context.waitMs() })
  // Counts only grants that were sent for the client.
  if (funded.kind !== 'funded' && funded.kind !== 'pending') {
    clients.releaseReservation(client, day, address)
  }
  return resultOf(funded, asked, judged, now())
}

/** Allows one read a second for each network of clients, so that many requests cost few calls. */
function isNew({ readAt, now }: Context, key: string): boolean {
  if (Math.abs(now() - (readAt.get(key) ?? 0)) < unusedMaxAgeMs) return false
  readAt.delete(key)
  readAt.set(key, now())
  const [oldest] = readAt.keys()
  if (readAt.size > lookedMax && oldest !== undefined) readAt.delete(oldest)
  return true
}

/** The refusal that needs no read of the address, if any. */
async function refuseEarly(
  context: Context,
  { network, address, signature }: Asked,
  client: string,
  day: number,
): Promise<GrantRefusal | undefined> {
  const { settlement, ledger, clients, now } = context
  const room = await ledger.room(network)
  if (room === 'spent') return spent(now())
  if (room === 'signed' && signature === undefined) return unsigned(network, address)
  if (!clients.hasRoom(client, day)) return tooMany(now())
  if (!settlement.isReady(network.id)) return notReady('The network cannot send now.')
  const unused = clients.unused(client, day).filter((each) => each !== address) as Address[]
  if (unused.length === 0) return undefined
  if (isNew(context, networkOf(client))) {
    const still = new Set(await idle(settlement, network, unused))
    clients.settle(unused.filter((each) => !still.has(each)))
  }
  return clients.unused(client, day).some((each) => each !== address) ? unusedGrant : undefined
}

async function again(
  { ledger }: Context,
  { network, address }: Asked,
  approve?: Grant.Approve,
): Promise<Result> {
  const row = await ledger.find(network.id, address)
  if (row === undefined) throw new Error(`${address} has no grant`)
  const { transaction, state } = await ledger.standingOf(row)
  const confirmed = state === 'confirmed'
  const members = { transaction, confirmed, ...(approve && { approve }) }
  return refuse('already-sponsored', known[state], members)
}

/** Handles an address that was sponsored: one top-up if fees rose before it used the grant. */
async function once(
  context: Context,
  asked: Asked,
  client: string,
  row: GrantRow,
): Promise<Result> {
  const { state } = await context.ledger.standingOf(row)
  if (row.kind !== 'grant' || state !== 'confirmed') return again(context, asked)
  const result = await fund(context, asked, client, row)
  if (result.kind === 'granted' || result.code === 'settlement-pending') return result
  return again(context, asked, result.approve)
}

async function grant(context: Context, asked: Asked, client: string): Promise<Result> {
  const { ledger, underWay } = context
  const { network, address } = asked
  const id = Grant.idOf(network.id, address)
  const running = underWay.get(id)
  if (running === undefined) {
    const work = begin(context, asked, client)
    underWay.set(id, work)
    return work.finally(() => underWay.delete(id))
  }
  const result = await running
  if (await ledger.find(network.id, address)) return again(context, asked)
  // Share the result of the address with this request, but not a refusal of the other client.
  const isOwn = result.kind === 'refused' && ownCodes.includes(result.code)
  return isOwn ? grant(context, asked, client) : result
}

/** The only running work on an address: its caller registers it before anything is read. */
async function begin(context: Context, asked: Asked, client: string): Promise<Result> {
  const { network, address } = asked
  const row = await context.ledger.find(network.id, address)
  const started = row ? once(context, asked, client, row) : fund(context, asked, client)
  const result = await started.catch((error: unknown): Result | Promise<Result> => {
    if (!(error instanceof RpcFault || error instanceof RpcError)) throw error
    return row ? again(context, asked) : notReady('The network gives no complete answer.', 5)
  })
  // In between, a signed approve of the address was sponsored, or the transfer was lost.
  const isLost = result.kind === 'refused' && result.code === 'already-sponsored' && !row
  return isLost ? again(context, asked) : result
}

function parse(
  request: SponsorRequest,
  networks: readonly Sponsored[],
  excluded: ReadonlySet<string>,
): Asked | Result {
  const address = AddressText.parseStrict(request.address)
  if (address === undefined || BigInt(address) < 1n << 16n) {
    const detail = 'address must be an account: 0x and 40 hex digits, with its checksum if mixed.'
    return refuse('invalid-address', detail)
  }
  if (excluded.has(address.toLowerCase())) {
    return refuse('invalid-address', 'address belongs to the service or to a contract it uses.')
  }
  const [main] = networks
  if (main === undefined) return refuse('not-found', 'No network sponsors approvals.')
  const network =
    request.network === undefined ? main : networks.find(({ id }) => id === request.network)
  if (network === undefined) {
    const ids = networks.map(({ id }) => id).join(', ')
    return refuse('invalid-parameter', `network must be one that is sponsored: ${ids}.`)
  }
  const { signature } = request
  if (signature === undefined) return { network, address, signature }
  if (typeof signature !== 'string' || !Grant.isSigned(network.id, address, signature)) {
    const message = Grant.messageOf(network.id, address)
    const detail = `signature must be the EIP-191 signature of address over: ${message}`
    return refuse('invalid-signature', detail)
  }
  return { network, address, signature }
}

function resultOf(
  funded: Funded,
  { network, address }: Asked,
  { approve }: Amount,
  now: number,
): Result {
  switch (funded.kind) {
    case 'funded':
      return {
        kind: 'granted',
        body: {
          granted: true,
          transaction: funded.transaction,
          amountWei: String(funded.amountWei),
          network: network.id,
          token: network.asset.address,
          spender: Permit.permit2Address,
          approve,
          alternatives: Grant.alternatives(network.asset),
        },
      }
    case 'pending': {
      const { transaction } = funded
      const detail = 'The grant is sent and not confirmed yet; it is not sent twice.'
      return { ...refuse('settlement-pending', detail, { transaction }), retryAfterSeconds: 2 }
    }
    case 'lost': {
      const { transaction } = funded
      return refuse('already-sponsored', 'The grant did not arrive.', { transaction })
    }
    case 'taken':
      return refuse('already-sponsored', 'The address was sponsored before.')
    case 'full':
      return funded.room === 'spent' ? spent(now) : unsigned(network, address)
    case 'unavailable':
      return notReady(funded.detail, funded.retryAfterSeconds)
  }
}
