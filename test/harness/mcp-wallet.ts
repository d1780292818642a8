import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
import type { CallToolResult } from '@modelcontextprotocol/sdk/types.js'
import { openChannelFiles } from '../../src/cli/buy/channel-files'
import { createBuyer } from '../../src/cli/mcp/buy'
import type { BuyerOptions } from '../../src/cli/mcp/call'
import { createCatalogue } from '../../src/cli/mcp/catalogue'
import { settleByChain } from '../../src/cli/mcp/evidence'
import { createGatewayClient } from '../../src/cli/mcp/gateway'
import { openSpending } from '../../src/cli/mcp/spending'
import { account, type DemoAccount } from '../../src/demo/accounts'
import * as Amount from '../../src/protocol/Amount'
import * as Crypto from '../../src/protocol/Crypto'
import { executable } from './executable'

/** Agents that buy by `turnpike mcp`. */

export type Message = {
  id: number
  method: string
  params: { name?: string; arguments?: object; _meta?: Record<string, unknown> }
}

/** A gateway's endpoint with every message that arrives; `script` may answer instead of it. */
export function startTap(endpoint: string) {
  const messages: Message[] = []
  const tap = {
    messages,
    /** Payments as they arrived, in the order of the messages. */
    payments: () =>
      messages.flatMap(({ params }) => {
        const payment = params._meta?.['x402/payment']
        return payment === undefined ? [] : [JSON.stringify(payment)]
      }),
    script: undefined as
      | ((message: Message, forward: () => Promise<Response>) => Promise<Response>)
      | undefined,
    url: '',
    stop: () => server.stop(true),
  }
  const server = Bun.serve({
    hostname: '127.0.0.1',
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      const body = await request.text()
      const message = JSON.parse(body) as Message
      messages.push(message)
      const headers = new Headers(request.headers)
      headers.delete('host')
      const forward = () => fetch(endpoint, { method: 'POST', headers, body })
      return tap.script?.(message, forward) ?? forward()
    },
  })
  tap.url = `http://127.0.0.1:${server.port}`
  return tap
}

const directories: string[] = []

/** Path of a state file in a new directory. */
export function newState(): string {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-mcp-'))
  directories.push(directory)
  return join(directory, 'state', 'mcp.sqlite')
}

/** Removes the directories of all state files. */
export function removeStates(): void {
  for (const each of directories.splice(0)) rmSync(each, { recursive: true, force: true })
}

export type AgentOptions = {
  url: string
  state: string
  perCall?: string
  perDay?: string
  buyer?: DemoAccount
  args?: readonly string[]
}

/** An agent: the client of the SDK over the stdio of the executable. */
export async function startAgent(options: AgentOptions) {
  const { url, state, perCall = '0.05', perDay = '2', buyer = account(1), args = [] } = options
  const transport = new StdioClientTransport({
    command: executable,
    args: [
      ...['mcp', url, '--max-per-call', perCall, '--max-per-day', perDay, '--state', state],
      ...args,
    ],
    env: { PAY_KEY: buyer.privateKey },
    stderr: 'pipe',
  })
  let said = ''
  transport.stderr?.on('data', (chunk) => {
    said += chunk
  })
  const faults: Error[] = []
  const client = new Client({ name: 'agent', version: '1' })
  // What is not JSON-RPC on stdout arrives here.
  client.onerror = (error) => void faults.push(error)
  await client.connect(transport)
  return {
    client,
    faults,
    pid: transport.pid ?? 0,
    stderr: () => said,
    call: async (name: string, given: Record<string, unknown> = {}) =>
      (await client.callTool({ name, arguments: given })) as CallToolResult,
    close: () => client.close(),
  }
}

export type Agent = Awaited<ReturnType<typeof startAgent>>

/** The texts of a result, one after the other. */
export function textsOf({ content }: Pick<CallToolResult, 'content'>): string {
  return content.map((item) => (item.type === 'text' ? item.text : `[${item.type}]`)).join('\n')
}

export type WalletOptions = {
  url: string
  state?: string
  perCall?: string
  perDay?: string
  deposit?: string
  buyer?: DemoAccount
  now?: () => number
  requestMs?: number
  busyMs?: number
} & Partial<Pick<BuyerOptions, 'scheme' | 'network' | 'rpc' | 'patienceMs'>>

/** What the program does with a call, in this process. */
export function startWallet({ url, state = newState(), ...options }: WalletOptions) {
  const { perCall = '0.05', perDay = '2', buyer = account(1), now = Date.now } = options
  const limits = {
    perCall,
    perDay,
    perCallMicros: Amount.fromDecimal(perCall, 6),
    perDayMicros: Amount.fromDecimal(perDay, 6),
  }
  const warnings: string[] = []
  const gateway = createGatewayClient({
    url: new URL(`${url}/mcp`),
    requestMs: options.requestMs ?? 30_000,
  })
  const catalogue = createCatalogue(gateway, limits, ['turnpike_budget'], (message) => {
    warnings.push(message)
  })
  const spending = openSpending(state, now, options.busyMs)
  const buy = createBuyer({
    ...{ gateway, catalogue, spending, limits, now },
    privateKey: Crypto.bytes(buyer.privateKey.slice(2)),
    payer: buyer.address,
    files: openChannelFiles(state),
    depositMicros: Amount.fromDecimal(options.deposit ?? perCall, 6),
    scheme: options.scheme,
    network: options.network,
    rpc: options.rpc,
    patienceMs: options.patienceMs ?? 120_000,
  })
  const never = new AbortController().signal
  return {
    ...{ catalogue, gateway, spending, state, warnings },
    reconcile: () => settleByChain(spending, options.rpc),
    list: () => catalogue.list(never),
    async call(name: string, args: Record<string, never | string | number | object> = {}) {
      const given = JSON.parse(JSON.stringify(args))
      const { content, isError = false } = await buy({ name, args: given }, never)
      return { isError, text: content.map(({ text }) => text).join('\n'), content }
    },
  }
}
