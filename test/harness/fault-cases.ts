/**
 * One fault each: a name (with + when others follow from it), a text of the small file and its
 * replacement. Below, a text of the line at fault and the pattern of its message.
 */
const table = String.raw`
text without a quote | slug = "two" | slug = two"
  slug = two" | ^column 8: a value is text in straight quotes, a number, true or false$
string without an end | slug = "two" | slug = "two
  slug = "two | ^column 8: this string has no end: write " behind it$
string behind another | ["GET", "POST"] | ["GET", 'POST]
  POST | ^column 19: this string has no end: write ' behind it$
long string without an end | slug = "two" | slug = """two
  "two | ^column 8: this string has no end: write """ behind it$
typographic quotes | slug = "two" | slug = \u201ctwo\u201d
  \u201ctwo | ^column 8: \u201c is a typographic quote: write straight ones, such as "text"$
typographic single quotes | slug = "two" | slug = \u2018two\u2019
  \u2018two | ^column 8: \u2018 is a typographic quote
typographic quote at the end | slug = "two" | slug = "two\u201d
  \u201d | ^column 8: this string has no end: write " behind it, because \u201d is no quote of TOML$
typographic quotes of a header | [stock] | [\u201cstock\u201d]
  \u201cstock | ^column 2: \u201c is a typographic quote
list header without a bracket | [[stock.tokens]] | [[stock.tokens] # NVDA
  # NVDA | ^column 16: both ends of a header have the same brackets: write \[\[stock.tokens\]\]$
list header with one bracket in front | [[stock.tokens]] | [stock.tokens]]
  stock.tokens | ^column 15: both ends .* write \[\[stock.tokens\]\]$
header without an end | [facilitator] | [facilitator
  [facilitator | ^column 13: both ends .* write \[facilitator\]$
header of two kinds | [facilitator] | [[facilitator]
  [[facilitator] | ^column \d+: both ends .* write \[facilitator\]$
key with a colon | slug = "two" | slug: "two"
  slug: | ^column 5: a key has letters, digits, _ and -, and = follows it$
key twice | slug = "two" | slug = "two"\nslug = "three"
  "three" | ^column 1: this key or table is in the file above, too: remove one of them$
table twice | [facilitator] | [service]\n[facilitator]
  [service]\n[facil | ^column 2: this key or table is in the file above
list without a comma | ["GET", "POST"] | ["GET" "POST"]
  ["GET" "POST"] | ^column 18: write a comma or the closing bracket in front of this$
other syntax | slug = "two" | slug = "\q"
  "\q" | ^column 10: unrecognised escape sequence
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
schema pattern with look-ahead | name = "q" | name = "q"\nschema = { pattern = "^(?=a)" }
  schema = | pattern has \(\?=, which linear matching lacks
schema pattern with many states | name = "q" | name = "q"\nschema = { pattern = "a.{20}b" }
  schema = | pattern has too many states: write minLength and maxLength
schema pattern of names | name = "q" | name = "q"\nschema = { patternProperties = { "(?!a)" = {} } }
  schema = | pattern has \(\?!, which linear matching lacks
schema pattern of an answer | price = "1" | price = "1"\nanswer = { pattern = "(" }
  answer = | pattern is not a regular expression
schema reference to nothing | name = "q" | name = "q"\nschema = { "$ref" = "#/$defs/x" }
  schema = | schema refers to #/\$defs/x, which is not in it
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
stock that is the asset | address = "0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC" | address = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
  address = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"\npool | address is the asset that pays for stock
pool that is the token | pool = "0xd4EB21209C4D6093f80B5b84f5C45cc093EA14a3" | pool = "0xd0601CE157Db5bdC3162BbaC2a2C8aF5320D9EEC"
  pool =  | address of the token itself
token twice | fee = 500 | fee = 500\n[[stock.tokens]]\nsymbol = "NVDA" #\nname = "B"\naddress = "0x2222222222222222222222222222222222222222"\npool = "0x3333333333333333333333333333333333333333"\nfee = 500
  symbol = "NVDA" # | symbol is already that of the token on line 5\d
ticker | symbol = "NVDA" | symbol = "nvda"
  symbol = "nvda" | ticker of capital letters
no token + | [[stock.tokens]] | [stock.token]
  [stock] | no token is listed; write \[\[stock.tokens\]\]
payee word | pay_to = "own" | pay_to = "all"
  pay_to | must be "own", "any" or an array of addresses
no payee | pay_to = "own" | pay_to = []
  pay_to | pay_to has no address
passed header name | tail = "none" | pass_headers = ["X Y"]
  pass_headers | header name, such as "x-total-count"
no route | [[merchants]]\nslug = "two" | [[merchants]]\nslug = "three"\nupstream = "https://a.example.com"\n[[merchants]]\nslug = "two"
  [[merchants]]\nslug = "three" | no route is listed; write \[\[merchants.routes\]\]
no signing domain | eip712 = { name = "USDC", version = "2" } | decimals = 6
  [networks."eip155:84532".asset] | eip712 is missing; write eip712 = \{ name = "USD Coin", version = "2" \}
no array of tables | [[merchants.routes.params]] | [merchants.routes.params]
  [merchants.routes.params] | params must be an array of tables: write \[\[merchants.routes.params\]\]
no table in an array + | [[merchants.routes.params]]\nname = "q" | params = ["q"]
  params = | params\[0\] must be a table: write \[\[merchants.routes.params\]\]
key above its table | [service] | title = "Shop"\n[service]
  title = | unknown key title; it is a key of \[service\]: write it below that line
key of another table | slug = "two" | slug = "two"\nprice = "1" #
  price = "1" # | unknown key price; it is a key of \[\[merchants.routes\]\]
unknown service + | [service] | [server]
  [server] | unknown key server; did you mean service\?
unknown network table + | [networks."eip155:84532"]\nname | [network."eip155:84532"]\nname
  [network." | unknown key network; did you mean networks\?
unknown merchant table + | [[merchants]]\nslug = "two" | [[merchant]]\nslug = "two"
  [[merchant]] | unknown key merchant; did you mean merchants\?
unknown key of the service | [service] | [service]\nbaseurl = "https://a.example.com"
  baseurl | did you mean base_url\?
unknown key of a network | name = "Base" | name = "Base"\nrpc_url = "x"
  rpc_url = | did you mean rpc_urls\?
unknown key of an asset | transfer = ["eip3009"] | transfers = ["eip3009"]
  transfers | did you mean transfer\?
unknown key of a token | fee = 500 | fee = 500\nslipage_bps = 1
  slipage_bps | did you mean slippage_bps\?
unknown key of the facilitator | pay_to = "own" | payto = "own"
  payto | did you mean pay_to\?
unknown key of a parameter | name = "q" | name = "q"\nrequires = true
  requires | did you mean required\?
tail parameter | tail = "none" | tail = "none"\n[[merchants.routes.params]]\nname = "x"\nin = "tail"
  in = "tail" | needs a route with a tail
duration | price = "1" | price = "1"\nagain = "1 day"
  again = | must be 1min to 366d in quotes, such as "24h"
duration in seconds | price = "1" | price = "1"\nagain = "90s"
  again = | must be 1min to 366d
long duration | price = "1" | price = "1"\nagain = "367d"
  again = | must be 1min to 366d
number of an access that is not given | price = "1" | price = "1"\nagain_max = 3
  again_max | again_max needs again, such as again = "24h"
trial without a number | price = "1" | price = "1"\ntrial = { total_per_day = 5 }
  trial = | requests is missing; write requests = 3
trial for an address | price = "1" | price = "1"\ntrial = { requests = 3, per = "address", total_per_day = 5 }
  trial = | per must be one of "wallet"
unknown key of a trial | price = "1" | price = "1"\ntrial = { requests = 3, total_per_days = 5, total_per_day = 5 }
  trial = | did you mean total_per_day\?
free pass | price = "1" | price = "1"\npass = { price = "0", period = "24h", requests = 5 }
  pass = | price must be above zero
cheap pass | price = "1" | price = "1"\npass = { price = "0.99", period = "24h", requests = 5 }
  pass = | price of a pass must be at least that of one request
pass without a period | price = "1" | price = "1"\npass = { price = "1", requests = 5 }
  pass = | period is missing; write period = "24h"
pass at the path of a route | path = "/a"\n | path = "/a"\nprice = "1"\npass = { price = "1", period = "24h", requests = 5 }\n[[merchants.routes]]\npath = "/a/pass"\n
  path = "/a/pass" | path is where the pass of /a is sold: write another
pass with a meter | methods = ["GET", "POST"] | methods = ["POST"]\nmeter = { preset = "none", base = "0.01" }\npass = { price = "1", period = "24h", requests = 5 }
  pass = | pass does not go with a meter, by which the body decides the price
short withdraw delay | name = "Base" | name = "Base"\nchannels = { withdraw_delay = "14min" }
  channels = | withdraw_delay must be 15min to 30d in quotes, such as "24h"
long withdraw delay | name = "Base" | name = "Base"\nchannels = { withdraw_delay = "31d" }
  channels = | withdraw_delay must be 15min to 30d
late claims | name = "Base" | name = "Base"\nchannels = { withdraw_delay = "2h" }
  channels = | claim_every is above a tenth of withdraw_delay: vouchers must be on the chain long before a withdrawal ends. Lower claim_every, or raise withdraw_delay
no scheme | price = "1" | price = "1"\nschemes = []
  schemes = | schemes is empty; write schemes = \["exact"\]
other scheme | price = "1" | price = "1"\nschemes = ["batch-settlement"]
  schemes = | must be one of "exact", "channel", "upto"
scheme twice | price = "1" | price = "1"\nschemes = ["exact", "exact"]
  schemes = | schemes names a scheme twice
use without a meter | price = "1" | price = "1"\nschemes = ["exact", "upto"]
  schemes = | "upto" needs a meter, which says what an answer costs: \[merchants.routes.meter\]
channels without a network | price = "1" | price = "1"\nschemes = ["channel"]
  schemes = | "channel" needs a network of the merchant with channels: \[networks."...".channels\]
refunds without a key | slug = "two" | slug = "two"\nrefund = "undelivered"
  refund = | refund = "undelivered" needs REFUND_KEY, the key of the account that pays it
exact tail | tail = "none" | tail = "exact"
  tail = | needs a parameter with in = "tail" for each segment
no method | ["GET", "POST"] | []
  methods = | methods is empty
method twice | ["GET", "POST"] | ["GET", "GET"]
  methods = | names a method twice
example | name = "q" | name = "q"\nexample = [1]
  example = | a string, a number, true or false
buffered bodies + | [service] | [service]\nbuffered_max = "1MiB"
  buffered_max | must be at least body_max
empty title | slug = "two" | slug = "two"\ntitle = " "
  title = " " | a string that is not empty
stock builtin + | [stock] | [extra]
  [extra] | unknown key extra
open facilitator | pay_to = "own" | pay_to = "any"
  pay_to | api_keys or min_amount
bare api key | pay_to = "own" | api_keys = ["my-secret-key"]
  api_keys | sha256 of the key, 64 hex digits, not the key$
facilitator asset | pay_to = "own" | assets = ["0x1111111111111111111111111111111111111111"]
  assets | asset of a listed network
`

export type Case = { from: string; to: string; at: string; message: RegExp; isMore: boolean }

function unescaped(text: string): string {
  return text.replace(/\\(n|\\|u(?<code>[0-9a-f]{4}))/g, (_, char: string, code?: string) => {
    if (code !== undefined) return String.fromCharCode(Number.parseInt(code, 16))
    return char === 'n' ? '\n' : char
  })
}

/** Every case by its name. */
export const cases: ReadonlyMap<string, Case> = new Map(
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
