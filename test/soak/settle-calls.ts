import { encodeFunctionData, type Hex, maxUint256, parseAbi } from 'viem'
import { type PrivateKeyAccount, privateKeyToAccount } from 'viem/accounts'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import * as Permit from '../../src/protocol/Permit'
import { charging, makeBody } from '../harness/facilitation'
import type { Read } from './cluster-audit'
import type { Finding } from './finding'
import { readTransfers } from './ledger'
import { nap } from './payers'
import type { Random } from './random'
import type { clusterRelayers, Setup, Site } from './setup'

/** Resource servers that settle one authorization at all gateways at once, and repeat their calls. */
export type SettleCalls = {
  start(): void
  /** Starts nothing new; resolves when all calls have ended, or after the time limit. */
  finish(limitMs: number): Promise<void>
  /** What they have moved to the payee, by network, atomic. */
  moved(): Promise<ReadonlyMap<string, bigint>>
  audit(read: Read): Promise<readonly Finding[]>
  figures(): readonly (readonly [name: string, value: number])[]
}

type Options = {
  setup: Setup
  /** URLs of the gateways. */
  urls: readonly string[]
  /** Whose keys all gateways have. */
  relayers: typeof clusterRelayers
  random: Random
}

type Answer = {
  gateway: number
  /** 0 without an answer. */
  status: number
  json: {
    success?: boolean
    status?: string
    transaction?: string
    errorReason?: string
    code?: string
  }
}

/** One authorization. */
type Settled = {
  nonce: string
  payer: string
  hasKey: boolean
  answers: Answer[]
  isFinal: boolean
}

const callers = 6
const answerMaxMs = 60_000
const apiKey = 'of-the-resource-server'
const hash = new Bun.CryptoHasher('sha256').update(apiKey).digest('hex')

/** Table of merchants.toml of a facilitator for these callers. */
export const facilitatorTable = `
[facilitator]
pay_to = "any"
min_amount = "0"
api_keys = ["0x${hash}"]
settle_per_minute = 1000000
`

/** Funds the payers of these callers. */
export async function createSettleCalls(options: Options): Promise<SettleCalls> {
  const { setup, random } = options
  const site = setup.sites.find(({ network }) => network.chainId === 4663)
  if (site === undefined) throw new Error('no network with Permit2')
  const payers = Array.from({ length: callers }, () => privateKeyToAccount(random.bytes32()))
  await fund(site, payers)
  const all: Settled[] = []
  const ending = new AbortController()
  const giveUp = new AbortController()
  const loops: Promise<void>[] = []
  return {
    start() {
      for (const [index, payer] of payers.entries()) {
        const own = random.fork(`settle ${index}`)
        loops.push(live({ ...options, site, payer, random: own, all, ending, giveUp }))
      }
    },
    async finish(limitMs) {
      ending.abort()
      const timer = setTimeout(() => giveUp.abort(), limitMs)
      await Promise.all(loops)
      clearTimeout(timer)
    },
    async moved() {
      const own = new Set(payers.map(({ address }) => address.toLowerCase()))
      const transfers = (await readTransfers(setup)).filter(({ payer }) => own.has(payer))
      const sums = new Map<string, bigint>()
      for (const { network, amountAtomic } of transfers)
        sums.set(network, (sums.get(network) ?? 0n) + amountAtomic)
      return sums
    },
    audit: (read) => audit(all, read),
    figures: () => figuresOf(all),
  }
}

async function fund({ chain, network }: Site, payers: readonly PrivateKeyAccount[]) {
  const abi = parseAbi([
    'function mint(address to, uint256 value)',
    'function approve(address spender, uint256 value) returns (bool)',
  ])
  const { address: to } = network.asset
  for (const { address } of payers) {
    await chain.rpc('anvil_setBalance', [address, '0xde0b6b3a7640000'])
    await chain.rpc('anvil_impersonateAccount', [address])
    const mint = encodeFunctionData({ abi, functionName: 'mint', args: [address, 10n ** 10n] })
    const args = [Permit.permit2Address, maxUint256] as const
    const approve = encodeFunctionData({ abi, functionName: 'approve', args })
    await execute(chain, [
      { from: account(9).address, to, data: mint },
      { from: address, to, data: approve },
    ])
  }
}

type Caller = Options & {
  site: Site
  payer: PrivateKeyAccount
  all: Settled[]
  ending: AbortController
  giveUp: AbortController
}

async function live({ ending, ...caller }: Caller): Promise<void> {
  for (let count = 0; !ending.signal.aborted; count++) {
    await settleOne(caller, count)
    await nap(caller.random.between(0, 500), ending.signal)
  }
}

async function settleOne(caller: Omit<Caller, 'ending'>, count: number): Promise<void> {
  const { setup, urls, relayers, random, site, payer, all, giveUp } = caller
  const isByUse = random.chance(0.4)
  const amountAtomic = BigInt(random.between(100, 900))
  const signed = await makeBody(site.network, {
    from: payer,
    to: setup.payee,
    amountAtomic: isByUse ? 5_000n : amountAtomic,
    ...(isByUse
      ? { scheme: 'upto', facilitator: random.pick(relayers).address }
      : { method: random.pick(['permit2', 'eip3009']) }),
    nonce: random.bytes32(),
    requirements: { maxTimeoutSeconds: random.between(1, 10), payTo: setup.payee },
  })
  const body = JSON.stringify(isByUse ? charging(signed, amountAtomic) : signed)
  const hasKey = random.chance(0.5)
  const headers = {
    'content-type': 'application/json',
    authorization: `Bearer ${apiKey}`,
    ...(hasKey && { 'idempotency-key': `${payer.address}-${count}` }),
  }
  const settled: Settled = {
    ...{ nonce: nonceOf(signed.paymentPayload.payload as Signed), payer: payer.address, hasKey },
    ...{ answers: [], isFinal: false },
  }
  all.push(settled)
  while (!settled.isFinal && !giveUp.signal.aborted) {
    await Promise.all(
      urls.map(async (url, gateway) => {
        const answer = await call(`${url}/facilitator/settle`, { method: 'POST', headers, body })
        settled.answers.push({ gateway, ...answer })
        if (isFinal(answer)) settled.isFinal = true
      }),
    )
    if (!settled.isFinal) await nap(random.between(50, 400), giveUp.signal)
  }
}

async function call(url: string, init: RequestInit): Promise<Omit<Answer, 'gateway'>> {
  try {
    const answer = await fetch(url, { ...init, signal: AbortSignal.timeout(answerMaxMs) })
    return { status: answer.status, json: (await answer.json()) as Answer['json'] }
  } catch {
    return { status: 0, json: {} }
  }
}

function isFinal({ status, json }: Omit<Answer, 'gateway'>): boolean {
  return status === 200 && json.status !== 'pending'
}

type Signed = { authorization?: { nonce: Hex }; permit2Authorization?: { nonce: string } }

/** As the database has it. */
function nonceOf(payload: Signed): string {
  const { authorization, permit2Authorization } = payload
  if (authorization) return authorization.nonce
  return `0x${BigInt(permit2Authorization?.nonce ?? 0)
    .toString(16)
    .padStart(64, '0')}`
}

type Row = { payer: string; nonce: string; state: string; transaction_hash: string }

/** Each authorization has at most one success, which names the transaction that paid. */
async function audit(all: readonly Settled[], read: Read): Promise<readonly Finding[]> {
  const rows = await read<Row>('SELECT payer, nonce, state, transaction_hash FROM payments')
  const keyOf = ({ payer, nonce }: Pick<Row, 'payer' | 'nonce'>) =>
    `${payer} ${nonce}`.toLowerCase()
  const byMoney = new Map(rows.map((row) => [keyOf(row), row]))
  return all.flatMap((settled): Finding[] => {
    const row = byMoney.get(keyOf(settled))
    const told = settled.answers.filter(({ json }) => json.success === true)
    const hashes = new Set(told.map(({ json }) => json.transaction))
    const text = `${JSON.stringify(settled)}\n  ${JSON.stringify(row ?? 'no payment')}`
    const found = (kind: Finding['kind'], what: string) => [{ kind, text: `${what}: ${text}` }]
    if (hashes.size > 1) return found('double', 'two transactions for one authorization')
    if (!settled.hasKey && told.length > 1)
      return found('double', 'two resource servers could answer for one authorization')
    if (!settled.isFinal) return found('stuck', 'no final answer of /settle')
    const isPaid = row?.state === 'confirmed'
    if (told.length > 0 && !isPaid) return found('unpaid', '/settle said success')
    if (told.length > 0 && !hashes.has(row?.transaction_hash))
      return found('mismatch', '/settle named another transaction')
    // A lost answer may have been the success.
    const isLost = settled.answers.some(({ status }) => status === 0 || status === 502)
    if (told.length === 0 && isPaid && !isLost) return found('lost', 'paid, and no success')
    return []
  })
}

function figuresOf(all: readonly Settled[]): ReturnType<SettleCalls['figures']> {
  const kinds = Map.groupBy(
    all.flatMap(({ answers }) => answers),
    ({ status, json }) =>
      `  ${status} ${json.success === true ? 'success' : (json.errorReason ?? json.code ?? '')}`,
  )
  return [
    ['settled at all gateways', all.length],
    ...[...kinds].sort().map(([name, list]) => [name, list.length] as const),
  ]
}
