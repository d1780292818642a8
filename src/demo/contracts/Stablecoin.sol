// SPDX-License-Identifier: MIT
pragma solidity ^0.8.28;

import {Signatures} from "./Signatures.sol";

/// @notice Stands in for USDC and USDG on local chains: EIP-3009, EIP-2612 and ERC-1271, anybody mints.
/// All configuration is storage, so that the runtime code can be placed at the real token's address.
/// @dev One flag chooses the manners. revertsOnUsedNonce true: USDC, with Circle's revert strings.
/// False: USDG, with Paxos' custom errors, no version(), and a used nonce that only emits an event,
/// before the signature is even looked at.
contract Stablecoin {
    event Transfer(address indexed from, address indexed to, uint256 value);
    event Approval(address indexed owner, address indexed spender, uint256 value);
    event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce);
    event AuthorizationCanceled(address indexed authorizer, bytes32 indexed nonce);
    event AuthorizationAlreadyUsed(address indexed authorizer, bytes32 indexed nonce);

    error AlreadyInitialized();
    error FacetNotFound();
    error ContractPaused();
    error AddressFrozen();
    error ZeroAddress();
    error InsufficientFunds();
    error InsufficientAllowance();
    error AuthorizationInvalid();
    error AuthorizationExpired();
    error CallerMustBePayee();
    error InvalidSignature();
    error PermitExpired();

    struct Authorization {
        address from;
        address to;
        uint256 value;
        uint256 validAfter;
        uint256 validBefore;
        bytes32 nonce;
    }

    bytes32 public constant TRANSFER_WITH_AUTHORIZATION_TYPEHASH = keccak256(
        "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 public constant RECEIVE_WITH_AUTHORIZATION_TYPEHASH = keccak256(
        "ReceiveWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
    );
    bytes32 public constant CANCEL_AUTHORIZATION_TYPEHASH =
        keccak256("CancelAuthorization(address authorizer,bytes32 nonce)");
    bytes32 public constant PERMIT_TYPEHASH =
        keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");

    string public name;
    string public symbol;
    string private domainVersion;
    uint8 public decimals;
    bool private initialized;
    bool public revertsOnUsedNonce;
    bool public paused;
    uint256 public totalSupply;
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;
    mapping(address => uint256) public nonces;
    mapping(address => mapping(bytes32 => bool)) public authorizationState;
    mapping(address => bool) private blocked;

    modifier whenRunning() {
        check(!paused, "Pausable: paused", ContractPaused.selector);
        _;
    }

    // Local chains only: setup and the switches of tests, open to anybody.

    function initialize(
        string calldata name_,
        string calldata symbol_,
        string calldata version_,
        uint8 decimals_,
        bool revertsOnUsedNonce_
    ) external {
        if (initialized) revert AlreadyInitialized();
        initialized = true;
        name = name_;
        symbol = symbol_;
        domainVersion = version_;
        decimals = decimals_;
        revertsOnUsedNonce = revertsOnUsedNonce_;
    }

    function mint(address to, uint256 value) external {
        totalSupply += value;
        balanceOf[to] += value;
        emit Transfer(address(0), to, value);
    }

    function setPaused(bool value) external {
        paused = value;
    }

    function setBlocked(address account, bool value) external {
        blocked[account] = value;
    }

    // ERC-20

    function version() external view returns (string memory) {
        if (!revertsOnUsedNonce) revert FacetNotFound();
        return domainVersion;
    }

    function isFrozen(address account) external view returns (bool) {
        return blocked[account];
    }

    function DOMAIN_SEPARATOR() public view returns (bytes32) {
        return keccak256(
            abi.encode(
                DOMAIN_TYPEHASH,
                keccak256(bytes(name)),
                keccak256(bytes(domainVersion)),
                block.chainid,
                address(this)
            )
        );
    }

    function transfer(address to, uint256 value) external whenRunning returns (bool) {
        move(msg.sender, to, value);
        return true;
    }

    function transferFrom(address from, address to, uint256 value) external whenRunning returns (bool) {
        requireUnblocked(msg.sender);
        uint256 allowed = allowance[from][msg.sender];
        if (allowed != type(uint256).max) {
            check(
                allowed >= value,
                "ERC20: transfer amount exceeds allowance",
                InsufficientAllowance.selector
            );
            allowance[from][msg.sender] = allowed - value;
        }
        move(from, to, value);
        return true;
    }

    function approve(address spender, uint256 value) external whenRunning returns (bool) {
        setAllowance(msg.sender, spender, value);
        return true;
    }

    // EIP-2612

    function permit(
        address owner,
        address spender,
        uint256 value,
        uint256 deadline,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        permit(owner, spender, value, deadline, abi.encodePacked(r, s, v));
    }

    function permit(
        address owner,
        address spender,
        uint256 value,
        uint256 deadline,
        bytes memory signature
    ) public whenRunning {
        check(deadline >= block.timestamp, "FiatTokenV2: permit is expired", PermitExpired.selector);
        bytes32 hash = keccak256(abi.encode(PERMIT_TYPEHASH, owner, spender, value, nonces[owner]++, deadline));
        requireSignature(owner, hash, signature, "EIP2612: invalid signature");
        setAllowance(owner, spender, value);
    }

    // EIP-3009

    function transferWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        settle(
            TRANSFER_WITH_AUTHORIZATION_TYPEHASH,
            Authorization(from, to, value, validAfter, validBefore, nonce),
            abi.encodePacked(r, s, v)
        );
    }

    function transferWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        bytes memory signature
    ) external {
        settle(
            TRANSFER_WITH_AUTHORIZATION_TYPEHASH,
            Authorization(from, to, value, validAfter, validBefore, nonce),
            signature
        );
    }

    function receiveWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        uint8 v,
        bytes32 r,
        bytes32 s
    ) external {
        check(to == msg.sender, "FiatTokenV2: caller must be the payee", CallerMustBePayee.selector);
        settle(
            RECEIVE_WITH_AUTHORIZATION_TYPEHASH,
            Authorization(from, to, value, validAfter, validBefore, nonce),
            abi.encodePacked(r, s, v)
        );
    }

    /// @dev Only USDC has this form.
    function receiveWithAuthorization(
        address from,
        address to,
        uint256 value,
        uint256 validAfter,
        uint256 validBefore,
        bytes32 nonce,
        bytes memory signature
    ) external {
        if (!revertsOnUsedNonce) revert FacetNotFound();
        check(to == msg.sender, "FiatTokenV2: caller must be the payee", CallerMustBePayee.selector);
        settle(
            RECEIVE_WITH_AUTHORIZATION_TYPEHASH,
            Authorization(from, to, value, validAfter, validBefore, nonce),
            signature
        );
    }

    function cancelAuthorization(address authorizer, bytes32 nonce, uint8 v, bytes32 r, bytes32 s) external {
        cancelAuthorization(authorizer, nonce, abi.encodePacked(r, s, v));
    }

    function cancelAuthorization(
        address authorizer,
        bytes32 nonce,
        bytes memory signature
    ) public whenRunning {
        if (!isUnused(authorizer, nonce)) return;
        bytes32 hash = keccak256(abi.encode(CANCEL_AUTHORIZATION_TYPEHASH, authorizer, nonce));
        requireSignature(authorizer, hash, signature, "FiatTokenV2: invalid signature");
        authorizationState[authorizer][nonce] = true;
        emit AuthorizationCanceled(authorizer, nonce);
    }

    function settle(bytes32 typehash, Authorization memory auth, bytes memory signature) private whenRunning {
        check(
            block.timestamp > auth.validAfter,
            "FiatTokenV2: authorization is not yet valid",
            AuthorizationInvalid.selector
        );
        check(
            block.timestamp < auth.validBefore,
            "FiatTokenV2: authorization is expired",
            AuthorizationExpired.selector
        );
        if (!isUnused(auth.from, auth.nonce)) return;
        bytes32 hash = keccak256(abi.encode(typehash, auth));
        requireSignature(auth.from, hash, signature, "FiatTokenV2: invalid signature");
        authorizationState[auth.from][auth.nonce] = true;
        emit AuthorizationUsed(auth.from, auth.nonce);
        move(auth.from, auth.to, auth.value);
    }

    function isUnused(address authorizer, bytes32 nonce) private returns (bool) {
        if (!authorizationState[authorizer][nonce]) return true;
        if (revertsOnUsedNonce) revert("FiatTokenV2: authorization is used or canceled");
        emit AuthorizationAlreadyUsed(authorizer, nonce);
        return false;
    }

    function move(address from, address to, uint256 value) private {
        requireUnblocked(from);
        requireUnblocked(to);
        check(to != address(0), "ERC20: transfer to the zero address", ZeroAddress.selector);
        uint256 balance = balanceOf[from];
        check(balance >= value, "ERC20: transfer amount exceeds balance", InsufficientFunds.selector);
        balanceOf[from] = balance - value;
        balanceOf[to] += value;
        emit Transfer(from, to, value);
    }

    function setAllowance(address owner, address spender, uint256 value) private {
        requireUnblocked(owner);
        requireUnblocked(spender);
        allowance[owner][spender] = value;
        emit Approval(owner, spender, value);
    }

    function requireUnblocked(address account) private view {
        check(!blocked[account], "Blacklistable: account is blacklisted", AddressFrozen.selector);
    }

    function requireSignature(
        address signer,
        bytes32 structHash,
        bytes memory signature,
        string memory reason
    ) private view {
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", DOMAIN_SEPARATOR(), structHash));
        Signatures.Fault fault = Signatures.check(signer, digest, signature);
        if (fault == Signatures.Fault.None) return;
        if (fault == Signatures.Fault.Length) reason = "ECRecover: invalid signature length";
        if (fault == Signatures.Fault.S) reason = "ECRecover: invalid signature 's' value";
        if (fault == Signatures.Fault.V) reason = "ECRecover: invalid signature 'v' value";
        check(false, reason, InvalidSignature.selector);
    }

    /// @dev The flag chooses between Circle's revert strings and Paxos' custom errors.
    function check(bool ok, string memory reason, bytes4 selector) private view {
        if (ok) return;
        if (revertsOnUsedNonce) revert(reason);
        assembly ("memory-safe") {
            mstore(0, selector)
            revert(0, 4)
        }
    }
}
