import { type Address, concat, type Hex, keccak256, numberToHex, pad } from 'viem'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import * as Token from '../../src/chain/token'
import type { NetworkConfig, Sponsor as SponsorConfig } from '../../src/config/Config'
import { account } from '../../src/demo/accounts'
import { type Chain, mine } from '../../src/demo/chains'
import { createRegistry, type Registry } from '../../src/http/metrics'
import { createLog } from '../../src/log'
import * as Crypto from '../../src/protocol/Crypto'
import * as Permit from '../../src/protocol/Permit'
import * as Transfer from '../../src/protocol/Transfer'
import type { ApprovalSponsor } from '../../src/settlement/sponsorship'
import { createSponsor, type Sponsor } from '../../src/sponsor/sponsor'
import { networkOf, payee, type SettlementFixture, startFixture } from './settlement'

/** Values of the shipped file. */
export const sponsorDefaults: SponsorConfig = {
  minBalanceAtomic: 250_000n,
  minBalanceAgeBlocks: 50,
  grantsPerDay: 200,
  maxGrantWei: 62_500_000_000_000n,
  ethPriceUsd: 4000,
}

/** A short age for tests of other rules: mining fifty blocks takes an eighth of a second. */
export const youngAge = { minBalanceAgeBlocks: 5 }

/** USDG with sponsoring. */
export function sponsoredNetwork(
  url: string,
  changes: Partial<SponsorConfig> = {},
  budgetWei = 10n ** 16n,
): NetworkConfig {
  const gasPerDayWei = {
    gateway: 10n ** 18n,
    facilitator: 10n ** 18n,
    desk: 10n ** 18n,
    sponsor: budgetWei,
    channels: 0n,
  }
  const sponsor = { ...sponsorDefaults, ...changes }
  return networkOf(url, 'usdg', { sponsor, gasPerDayWei })
}

export type Sponsoring = Sponsor & {
  approvals: ApprovalSponsor
  desk: SettlementFixture
  registry: Registry
  /** Everything that was logged. */
  logged: string[]
  /** Rows of the ledger. */
  rows(): Record<string, unknown>[]
}

/** Starts settlement and sponsoring over a data directory. */
export async function startSponsoring(
  networks: readonly NetworkConfig[],
  dataDir: string,
  options: { now?: () => number; waitMs?: number; recover?: boolean } = {},
): Promise<Sponsoring> {
  const { now = Date.now, waitMs = 120_000, recover = true } = options
  const registry = createRegistry()
  const fixture = await startFixture(networks, dataDir, { now, meter: registry, recover })
  const logged: string[] = []
  const sponsor = createSponsor({
    grants: fixture.ledger.grants,
    settlement: fixture.settlement,
    networks,
    accounts: [account(0).address],
    meter: registry,
    now,
    log: createLog({ write: (line) => void logged.push(line), pretty: false }),
    waitMs: () => waitMs,
  })
  const query = fixture.sql.query<Record<string, unknown>, []>('SELECT * FROM grants')
  const { approvals } = sponsor
  if (approvals === undefined) throw new Error('no network is sponsored')
  return { ...sponsor, approvals, desk: fixture, registry, logged, rows: () => query.all() }
}

/** Keys and their addresses, the same ones for the same seed. */
export function wallets(count: number, seed: string): { address: Address; privateKey: Hex }[] {
  return Array.from({ length: count }, (_, index) => {
    const privateKey = Crypto.hex(Crypto.keccak256(`${seed} ${index}`))
    return { address: Crypto.addressOf(Crypto.bytes(privateKey)), privateKey }
  })
}

/** A wallet that was never used. */
export function freshWallet() {
  const privateKey = generatePrivateKey()
  return { ...privateKeyToAccount(privateKey), privateKey }
}

/** Storage slots of the local token. */
const slots = { balanceOf: 5n, allowance: 6n }

function slotOf(key: Address, mapping: Hex | bigint): Hex {
  const slot = typeof mapping === 'bigint' ? numberToHex(mapping, { size: 32 }) : mapping
  return keccak256(concat([pad(key), slot]))
}

/** Gives many addresses a token balance at once; nothing is mined. */
export const setTokens = (
  chain: Chain,
  token: Address,
  holders: readonly Address[],
  atomic: bigint,
) =>
  setWords(
    chain,
    token,
    holders.map((holder) => slotOf(holder, slots.balanceOf)),
    atomic,
  )

/** Lets Permit2 transfer from many addresses at once, without mining. */
export const setAllowances = (
  chain: Chain,
  token: Address,
  owners: readonly Address[],
  atomic: bigint,
) =>
  setWords(
    chain,
    token,
    owners.map((owner) => slotOf(Permit.permit2Address, slotOf(owner, slots.allowance))),
    atomic,
  )

async function setWords(
  chain: Chain,
  contract: Address,
  words: readonly Hex[],
  value: bigint,
): Promise<void> {
  const content = numberToHex(value, { size: 32 })
  for (let from = 0; from < words.length; from += 1000) {
    await batch(
      chain,
      words
        .slice(from, from + 1000)
        .map((word) => ['anvil_setStorageAt', [contract, word, content]]),
    )
  }
}

/** Many JSON-RPC requests in one. Throws when one of them fails. */
export async function batch(
  chain: Chain,
  calls: readonly (readonly [method: string, params: readonly unknown[]])[],
): Promise<unknown[]> {
  const response = await fetch(chain.url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(
      calls.map(([method, params], id) => ({ jsonrpc: '2.0', id, method, params })),
    ),
  })
  const answers = (await response.json()) as { id: number; result?: unknown; error?: unknown }[]
  const failed = answers.find(({ error }) => error !== undefined)
  if (failed) throw new Error(JSON.stringify(failed.error))
  return answers.toSorted((a, b) => a.id - b.id).map(({ result }) => result)
}

/** Mines until earlier balances are old enough. */
export const age = (chain: Chain, blocks = sponsorDefaults.minBalanceAgeBlocks) =>
  mine(chain, blocks + 1)

/** Native coin of an address, in wei. */
export async function weiOf(chain: Chain, holder: Address): Promise<bigint> {
  return BigInt((await chain.rpc('eth_getBalance', [holder, 'latest'])) as Hex)
}

/** Base fee of the newest block, in wei. */
export async function baseFeeOf(chain: Chain): Promise<bigint> {
  const block = (await chain.rpc('eth_getBlockByNumber', ['latest', false])) as {
    baseFeePerGas: Hex
  }
  return BigInt(block.baseFeePerGas)
}

/** An approve of Permit2, signed by a wallet; `changes` replaces members. */
export async function signApprove(
  chain: Chain,
  privateKey: Hex,
  token: Address,
  changes: {
    nonce?: number
    maxFeePerGas?: bigint
    maxPriorityFeePerGas?: bigint
    gas?: bigint
  } = {},
): Promise<Hex> {
  const baseFee = await baseFeeOf(chain)
  return privateKeyToAccount(privateKey).signTransaction({
    type: 'eip1559',
    chainId: chain.chainId,
    nonce: 0,
    to: token,
    data: Token.approve(token, Permit.permit2Address, (1n << 256n) - 1n).data,
    gas: 70_000n,
    maxFeePerGas: (baseFee * 6n) / 5n,
    maxPriorityFeePerGas: 0n,
    ...changes,
  })
}

/** A Permit2 transfer of 0.005 signed by a wallet. */
export function signPermit2(
  network: NetworkConfig,
  privateKey: Hex,
  changes: Partial<Transfer.Transfer> = {},
): Transfer.Transfer {
  const unsigned = {
    method: 'permit2' as const,
    network: network.id,
    chainId: network.chainId,
    asset: network.asset.address,
    payer: privateKeyToAccount(privateKey).address,
    payee,
    amountAtomic: 5_000n,
    nonce: generatePrivateKey(),
    validAfter: 0n,
    validBefore: BigInt(Math.floor(Date.now() / 1000) + 300),
    ...changes,
  }
  const digest = Transfer.digest(unsigned, network.asset)
  return { ...unsigned, signature: Crypto.sign(digest, Crypto.bytes(privateKey)), ...changes }
}
