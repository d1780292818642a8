import { afterAll, describe, expect, test } from 'bun:test'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { mnemonicToAccount } from 'viem/accounts'
import { developmentAccounts } from '../src/config/crosschecks'
import type { Options } from '../src/config/merchants'
import { edited, env, linesOf, lineWith, named, payout, read, small } from './harness/config'

const directory = mkdtempSync(join(tmpdir(), 'turnpike-faults-'))
afterAll(() => rmSync(directory, { recursive: true }))

/**
 * One fault each: a name (with + when others follow from it), a text of the small file and its
 * replacement. Below, a text of the line at fault and the pattern of its message.
 */
const table = String.raw`
syntax | slug = "two" | slug = two"
  slug = two" | ^column \d+:
unknown key | price = "1" | prize = "1"\nprice = "1"
  prize | unknown key prize; did you mean price\?
unknown table | [facilitator] | [facilitators]
  [facilitators] | did you mean facilitator\?
far unknown key | slug = "two" | slug = "two"\nqwertyuiop = 1
  qwertyuiop | known here: .*upstream
missing key | price = "1"\n |
  [[merchants.routes]]\npath = "/c" | price is missing; write price = "0.005"
wrong type | slug = "two" | slug = "two"\ntimeout_ms = "5"
  timeout_ms | integer from 1 to 600000.*found "5"
keep alive | slug = "two" | slug = "two"\nkeep_alive = "no"
  keep_alive | true or false
no places | slug = "two" | slug = "two"\nconcurrency_max = 0
  concurrency_max | integer from 1 to 12000.*found 0
no table | eip712 = { name = "USDC", version = "2" } | eip712 = 1
  eip712 = 1 | must be a table
no array | methods = ["GET", "POST"] | methods = "GET"
  methods = | must be an array
duplicate slug | slug = "two" | slug = "one"\n#
  slug = "one"\n# | already that of the merchant on line 28
bad slug | slug = "two" | slug = "Two"
  slug = "Two" | small letters
duplicate route | path = "/a/b" | path = "/a" #
  path = "/a" # | already sold by the route on line 32
path with slash | path = "/c" | path = "/c/"
  "/c/" | literal segments
path with dots | path = "/c" | path = "/c/../d"
  /c/../d | literal segments
discovery path | path = "/c" | path = "/openapi.json"
  /openapi.json | discovery
price as number | price = "1" | price = 0.005
  price = 0.005 | must be a string.*found 0.005
price of zero | price = "1" | price = "0.000000"
  0.000000 | above zero
fine price | price = "1" | price = "0.0000001"
  0.0000001 | at most 6 decimals
price in words | price = "1" | price = "1e3"
  1e3 | decimal number
small method | ["GET", "POST"] | ["GET", "post"]
  "post" | write "POST"
free head | ["GET", "POST"] | ["HEAD"]
  "HEAD" | comes with GET
bad tail | tail = "none" | tail = "all"
  "all" | "optional", "required", "none"
upstream path | tail = "none" | tail = "none"\nupstream_path = "/x{tail}"
  upstream_path | only with a tail
upstream query | tail = "none" | upstream_path = "/x?y=1"
  upstream_path | without query
upstream dots | tail = "none" | upstream_path = "/x/%2e%2E/y"
  upstream_path | dot segments
two queries | tail = "none" | query = { a = "1" }\nfixed_query = { a = "2" }
  query = | fixed_query too
query type | tail = "none" | query = { a = 1 }
  query = | must be a string
route size | tail = "none" | body_max = "1GiB"
  body_max | buffered_max
http upstream | "https://two.example.com" | "http://two.example.com"
  http://two | https.*allow_private
private upstream | "https://two.example.com" | "https://169.254.169.254"
  169.254 | private address
upstream with user | "https://two.example.com" | "https://u:p@two.example.com"
  u:p | user or password$
no upstream | upstream = "https://two.example.com"\n |
  [[merchants]]\nslug = "two" | upstream is missing
builtin with upstream + | slug = "two" | slug = "two"\nbuiltin = "catjoke"
  upstream = "https://two | no upstream
builtin route | upstream = "https://two.example.com" | builtin = "catjoke"
  path = "/c" | /joke
header value | slug = "two" | slug = "two"\nheaders = { "X-A" = "a\\r\\nB: c" }
  headers = { "X-A" | line ends
header name | slug = "two" | slug = "two"\nheaders = { "X A" = "a" }
  headers = { "X A" | not a header name
gateway header | slug = "two" | slug = "two"\nheaders = { "Host" = "a" }
  "Host" | set by the gateway
payment header | slug = "two" | slug = "two"\nheaders = { "Payment-X" = "a" }
  "Payment-X" | never sent upstream
header twice | slug = "two" | slug = "two"\nheaders = { "a" = "1", "A" = "2" }
  "A" = "2" | twice
passed cookie | tail = "none" | pass_headers = ["X-Ok", "Set-Cookie"]
  pass_headers | never forwarded
passed payment | tail = "none" | pass_headers = ["PAYMENT-RESPONSE"]
  pass_headers | never forwarded
parameter twice | name = "q" | name = "q"\n[[merchants.routes.params]]\nname = "q" #
  name = "q" # | already described
parameter place | name = "q" | name = "q"\nin = "body"
  in = "body" | "query", "tail"
schema type | name = "q" | name = "q"\nschema = { type = "text" }
  schema = | type must be one of string
schema pattern | name = "q" | name = "q"\nschema = { pattern = "(" }
  schema = | regular expression
schema reference | name = "q" | name = "q"\nschema = { "$ref" = "http://a/b" }
  schema = | own schema
base url with path | "https://pay.example.com" | "https://pay.example.com/x"
  /x" | write "https://pay.example.com"
base url scheme | "https://pay.example.com" | "ftp://pay.example.com"
  ftp | absolute URL
body without a method | price = "1" | price = "1"\nbody_required = true
  body_required | needs a method with a body
answer type | price = "1" | price = "1"\nanswer = { type = "list" }
  answer | type must be one of string
facilitator below the merchants | [service] | [service]\nfacilitator_url = "https://a.example.com/m/x402"
  facilitator_url | below /m, which is taken
facilitator below the stocks | [service] | [service]\nstock_base_url = "https://a.example.com/shop"\nfacilitator_url = "https://b.example.com/shop/api/stock/order"
  facilitator_url | among the paths of stock_base_url
facilitator path | [service] | [service]\nfacilitator_url = "https://a.example.com/x%2f402/"
  facilitator_url | path of letters, digits
stocks below the facilitator | [service] | [service]\nstock_base_url = "https://a.example.com/facilitator"
  stock_base_url | below /facilitator, which is taken
stocks below the pages | [service] | [service]\nstock_base_url = "https://a.example.com/admin/x"
  stock_base_url | below /admin, which is taken
empty part of a path | [service] | [service]\nstock_base_url = "https://a.example.com/a//b"
  stock_base_url | path of letters, digits
base url query | "https://pay.example.com" | "https://pay.example.com?x"
  ?x | query
listen | "127.0.0.1:4020" | "127.0.0.1"
  listen | host:port
listen port | "127.0.0.1:4020" | "127.0.0.1:65536"
  listen | host:port
size | [service] | [service]\nbody_max = "10MB"
  body_max | KiB, MiB or GiB
sizes | [service] | [service]\nunpaid_body_max = "11MiB"
  unpaid_body_max | must not exceed body_max
second node | [service] | [service]\nconfirm_twice_above = 10
  confirm_twice_above | amount in USD in quotes, such as "10", or "off"
exclusive payout | [service] | [service]\npayout_exclusive = "yes"
  payout_exclusive | true or false
mpp order | [service] | [service]\nmpp_order = ["eip155:1"]
  mpp_order | eip155:1 is none of the networks of this service: "eip155:8453", "eip155:84532"$
discovery network | [service] | [service]\ndiscovery_network = "eip155:10"
  discovery_ | eip155:10 is none of the networks
network id | slug = "two" | slug = "two"\nnetworks = ["bass"]
  networks = ["bass"] | one of "base", "base-sepolia", "robinhood", or a CAIP-2 id
network not listed | slug = "two" | slug = "two"\nnetworks = ["eip155:1"]
  ["eip155:1"] | none of the networks of this service
network twice | slug = "two" | slug = "two"\nnetworks = ["eip155:8453", "eip155:8453"]
  networks = [ | twice
no network | slug = "two" | slug = "two"\nnetworks = []
  networks = [] | networks is empty
testnet | slug = "two" | slug = "two"\nnetworks = ["eip155:84532"]
  networks = [ | testnet_ok = true
caip id + | [networks."eip155:84532"]\nname | [networks."base"]\nname
  [networks."base"] | not a CAIP-2 id.*write \[networks\."eip155:8453"\]$
rpc url | "https://rpc.example.com" | "rpc.example.com/secret-key"
  rpc_urls | absolute URL, such as "https://host"$
rpc url on its line | "https://sepolia.example.com" | "wss://sepolia.example.com"
    "wss: | rpc_urls\[0\]
no rpc | "https://rpc.example.com" |
  rpc_urls = [] | rpc_urls is missing
fee cap | name = "Base" | name = "Base"\nfee_cap_gwei = "0"
  fee_cap_gwei | above zero
gas ratio | name = "Base" | name = "Base"\ngas_ratio_max = -1
  gas_ratio_max | at least 0
price of the coin | name = "Base" | name = "Base"\neth_price_usd = 0
  eth_price_usd | above 0
gas budget | name = "Base" | name = "Base"\ngas_per_day_wei = { gateway = 1 }
  gas_per_day_wei | whole wei
decimals | transfer = ["eip3009"] | decimals = 18
  decimals | must be 6
transfer method | ["eip3009"] | ["erc20"]
  transfer | "permit2", "eip3009"
stock asset | transfer = ["eip3009"] | transfer = ["permit2"]
  network = "eip155:8453" | network needs an asset with "eip3009"
no transfer method | ["eip3009"] | []
  transfer | each method once
address | "0x036CbD53842c5426634e7929541eC2318f3dCF7e" | "0x036"
  0x036 | 40 hex digits
checksum | 0x036CbD53842c | 0x036cbD53842c
  0x036cbD | EIP-55.*write 0x036CbD53842c5426634e7929541eC2318f3dCF7e
factory | factory = "0x1f7d | factory = "0x1F7d
  factory | EIP-55
pool missing | pool = "0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3"\n |
  [[stock.tokens]] | pool is missing
feed | fee = 500 | fee = 500\nfeed = "none"
  feed =  | 40 hex digits
pool fee | fee = 500 | fee = 1000000
  fee =  | from 1 to 999999
slippage | fee = 500 | fee = 500\nslippage_bps = 10000
  slippage | from 1 to 5000
fee of stock | [stock] | [stock]\nfee_bps = -1
  fee_bps | from 0 to 1000
stock limits | [stock] | [stock]\nmin = "2"\nmax = "1"
  min =  | must not exceed max
stock network | network = "eip155:8453" | network = "eip155:1"
  network = "eip155:1" | none of the networks of this service
issuer | [stock] | [stock]\nissuer_url = "http://issuer.example.com"
  issuer_url | public https URL
explorer | [stock] | [stock]\nexplorer_url = "https://10.0.0.7"
  explorer_url | public https URL
explorer query | [stock] | [stock]\nexplorer_url = "https://explorer.example.com/?key=1"
  explorer_url | must not have a query
stock builtin + | [stock] | [extra]
  [extra] | unknown key extra
open facilitator | pay_to = "own" | pay_to = "any"
  pay_to | api_keys or min_amount
bare api key | pay_to = "own" | api_keys = ["my-secret-key"]
  api_keys | sha256 of the key, 64 hex digits, not the key$
facilitator asset | pay_to = "own" | assets = ["0x1111111111111111111111111111111111111111"]
  assets | asset of a listed network
`

type Case = { from: string; to: string; at: string; message: RegExp; isMore: boolean }

function unescaped(text: string): string {
  return text.replace(/\\(n|\\)/g, (_, char) => (char === 'n' ? '\n' : char))
}

const cases = new Map(
  table
    .trim()
    .split(/\n(?! )/)
    .map((row): [string, Case] => {
      const [name = '', from = '', to = '', at = '', message = ''] = row
        .split(/[|\n]/)
        .map((cell) => cell.trim())
      return [
        name.replace(' +', ''),
        {
          from: unescaped(from),
          to: unescaped(to),
          at: unescaped(at),
          message: new RegExp(message),
          isMore: name.endsWith('+'),
        },
      ]
    }),
)

describe('faults', () => {
  for (const [name, { from, to, at, message, isMore }] of cases) {
    test(`error: ${name}`, () => {
      const text = edited(from, to)
      const { faults } = read(text)
      const line = lineWith(text, at)
      expect(faults.find((fault) => fault.line === line)?.message).toMatch(message)
      if (!isMore) expect(faults).toHaveLength(1)
    })
  }

  test('error: all faults are reported at once, in line order', () => {
    let text = small
    const keys = ['checksum', 'price of zero', 'bad slug', 'listen', 'open facilitator', 'bad tail']
    for (const key of keys) {
      const { from = '', to = '' } = cases.get(key) ?? {}
      text = text.replace(from, () => to)
    }
    const lines = read(text).faults.map(({ line }) => line)
    expect(lines).toHaveLength(keys.length)
    expect(lines).toEqual([...lines].sort((a, b) => a - b))
  })

  test('error: an empty file is reported with the keys that it needs', () => {
    expect(linesOf('')).toEqual([
      'm.toml:1: no network is listed; write networks = ["base"] under [service]',
      'm.toml:1: payout is missing; write payout = "0x..."',
    ])
  })

  test('error: prototype keys are refused', () => {
    expect(linesOf(edited('[stock]', '[__proto__]'))).toHaveLength(1)
  })
})

describe('payouts', () => {
  const asPayout = (value: string, relayers: Options['relayers'] = () => []) =>
    linesOf(edited(`"${named('PAYOUT')}"`, `"${value}"`), { relayers })

  test('error: zero, burn, token, contract, relayer and development accounts', () => {
    for (const [value, message] of [
      ['0x0000000000000000000000000000000000000000', /m.toml:3: payout is the zero address/],
      ['0x000000000000000000000000000000000000dEaD', /burn address/],
      ['0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913', /token contract/],
      ['0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC', /token contract/],
      ['0x000000000022D473030F116dDEE9F6B43aC78BA3', /contract, not a wallet/],
      ['0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3', /contract, not a wallet/],
      ['0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266', /development account/],
    ] as const) {
      const faults = asPayout(value)
      expect(faults).toHaveLength(1)
      expect(faults[0]).toMatch(message)
    }
    expect(asPayout(payout, () => [payout])[0]).toMatch(/relayer of this gateway/)
  })

  test('error: the payout of a merchant is at fault on its own line', () => {
    const text = edited('slug = "two"', `slug = "two"\npayout = "${developmentAccounts[1]}"`)
    expect(linesOf(text)).toEqual([
      expect.stringMatching(`m.toml:${lineWith(text, 'slug = "two"') + 1}: `),
    ])
  })

  test('behavior: a chain on this machine may pay development accounts', () => {
    const text = edited(`"${named('PAYOUT')}"`, `"${developmentAccounts[0]}"`)
    const rpcUrls = { 'eip155:8453': 'http://127.0.0.1:8545' } as const
    expect(linesOf(text)).toHaveLength(1)
    expect(linesOf(text, { overrides: { rpcUrls } })).toEqual([])
    const mixed = text.replace(
      '"https://rpc.example.com"',
      '"http://localhost:1", "https://a.example"',
    )
    expect(linesOf(mixed)).toHaveLength(1)
  })

  test('behavior: the development accounts are those of the mnemonic', () => {
    const mnemonic = 'test test test test test test test test test test test junk'
    const derived = Array.from(
      { length: 20 },
      (_, addressIndex) => mnemonicToAccount(mnemonic, { addressIndex }).address,
    )
    expect(developmentAccounts).toEqual(derived)
  })
})

describe('secrets stay out of messages', () => {
  test('error: no message shows a value from the environment', () => {
    const secret = 'S3CRET-value\n-of-the-environment'
    for (const [from, to] of [
      ['"127.0.0.1:4020"', named('X')],
      ['"https://pay.example.com"', named('X')],
      ['"https://pay.example.com"', `https://a/${named('X')}?`],
      ['"https://rpc.example.com"', named('X')],
      ['"0x036CbD53842c5426634e7929541eC2318f3dCF7e"', named('X')],
      ['"two"', named('X')],
      ['"/c"', named('X')],
      ['"1"', named('X')],
      ['"none"', named('X')],
      ['"https://two.example.com"', named('X')],
      ['"own"', named('X')],
      ['["eip3009"]', named('X')],
      [`"key-${named('ONE_KEY')}"`, `a${named('X')}`],
    ] as const) {
      const faults = linesOf(edited(from, `"${to}"`), { env: { ...env, X: secret } })
      expect(faults.length).toBeGreaterThan(0)
      expect(faults.join('\n')).not.toMatch(/S3CRET|value\b.*\bof-the/)
    }
  })

  test('error: a payout of the environment is refused without its digits', () => {
    const wrong = '0x036cbD53842c5426634e7929541eC2318f3dCF7e'
    expect(linesOf(small, { env: { ...env, PAYOUT: wrong } })).toEqual([
      'm.toml:3: payout has a wrong EIP-55 checksum: check every digit',
    ])
  })

  test('error: a faulty name, a missing file and a name set twice are named', () => {
    const bad = edited('"NVIDIA"', `"${named('NV-1')}"`)
    expect(linesOf(bad)[0]).toMatch(/letters, digits and _/)
    const path = join(directory, 'absent-file')
    const missing = linesOf(small, { env: { PAYOUT_FILE: path } })
    expect(missing).toEqual(['m.toml:3: the file that PAYOUT_FILE names cannot be read (ENOENT)'])
    expect(linesOf(small, { env: { ...env, PAYOUT_FILE: path } })).toEqual([
      'm.toml:3: PAYOUT and PAYOUT_FILE are both set: unset one of them',
    ])
  })
})

test('error: bytes that are not UTF-8 are a fault of their line', () => {
  const bytes = Buffer.from(edited('slug = "two"', 'slug = "two" # caf?'))
  bytes[bytes.indexOf('?')] = 0xe9
  expect(linesOf(bytes.toString('utf8'))).toEqual([
    `m.toml:${lineWith(small, 'slug = "two"')}: the bytes here are not UTF-8: save the file as UTF-8`,
  ])
})
